#include "hub/hub_client.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>

#include "base/log.h"

namespace millrace::hub {
namespace {

constexpr int kMaxRedirects = 8;
/// Hubs send files from a few storage servers.
constexpr size_t kMaxConnections = 4;

constexpr unsigned kUnauthorized = 401;
constexpr unsigned kForbidden = 403;
constexpr unsigned kNotFound = 404;
constexpr unsigned kRequestTimeout = 408;
constexpr unsigned kTooManyRequests = 429;
constexpr unsigned kServerErrors = 500;

bool is_redirect(unsigned status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

std::string_view without_blanks(std::string_view text) {
  constexpr std::string_view kWhitespace = " \t";
  const size_t begin = text.find_first_not_of(kWhitespace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kWhitespace) + 1 - begin);
}

/// Takes what stands before the next separator off the front of a text.
std::string_view take_part(std::string_view& text, char separator) {
  const size_t end = std::min(text.find(separator), text.size());
  const std::string_view part = without_blanks(text.substr(0, end));
  text.remove_prefix(std::min(end + 1, text.size()));
  return part;
}

/// Reads a count of seconds, at most kMaxWait.
std::optional<std::chrono::seconds> read_seconds(std::string_view text) {
  // Hugging Face counts requests in windows of five minutes.
  constexpr uint64_t kMaxWait = 600;
  uint64_t seconds = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (failure == std::errc::invalid_argument || end != text.data() + text.size()) return std::nullopt;
  if (failure == std::errc::result_out_of_range) seconds = kMaxWait;
  return std::chrono::seconds(std::min(seconds, kMaxWait));
}

/// Reads the longest wait in a RateLimit field, of the quotas that are spent: "api";r=0;t=55 has no request left for 55
/// seconds (draft-ietf-httpapi-ratelimit-headers-09).
std::optional<std::chrono::seconds> read_reset(std::string_view field) {
  std::optional<std::chrono::seconds> longest;
  while (!field.empty()) {
    std::string_view item = take_part(field, ',');
    bool is_spent = false;
    std::optional<std::chrono::seconds> wait;
    while (!item.empty()) {
      const std::string_view parameter = take_part(item, ';');
      if (parameter == "r=0") is_spent = true;
      if (parameter.starts_with("t=")) wait = read_seconds(parameter.substr(2));
    }
    if (is_spent) longest = std::max(longest, wait);
  }
  return longest;
}

}  // namespace

HubClient::HubClient(async::Runtime& runtime, std::shared_ptr<asio::ssl::context> tls, const HubSettings& settings)
    : runtime_(runtime), tls_(std::move(tls)), settings_(settings) {}

HttpConnection& HubClient::connection_to(const Url& url) {
  const std::string origin = url.origin();
  if (!connections_.contains(origin) && connections_.size() >= kMaxConnections) connections_.clear();
  auto& connection = connections_[origin];
  if (!connection) {
    connection = std::make_unique<HttpConnection>(runtime_, *tls_, settings_, url);
    if (has_token_for(url) && connection->is_read_by_proxy())
      log::warn("{}: HF_TOKEN is not sent, since a proxy would read it", origin);
  }
  return *connection;
}

bool HubClient::has_token_for(const Url& url) const {
  return !settings_.token.empty() && url.origin() == settings_.endpoint.origin();
}

asio::awaitable<HttpHead> HubClient::get(Url url, std::optional<Range> range) {
  const std::string first = url.to_string();
  for (int redirects = 0; redirects <= kMaxRedirects; ++redirects) {
    HttpRequest request{.url = url};
    request.headers.emplace_back("Accept-Encoding", "identity");
    current_ = nullptr;  // connection_to may close it before it fails
    current_ = &connection_to(url);
    if (has_token_for(url) && !current_->is_read_by_proxy())
      request.headers.emplace_back("Authorization", "Bearer " + settings_.token);
    if (range)
      request.headers.emplace_back("Range", range->end == 0 ? fmt::format("bytes={}-", range->begin)
                                                            : fmt::format("bytes={}-{}", range->begin, range->end - 1));
    HttpHead head = co_await current_->request(std::move(request));
    const std::string_view location = head.field("Location");
    if (!is_redirect(head.status) || location.empty()) co_return head;
    auto next = resolve_location(url, location);
    if (next.has_error()) throw ErrorException(next.error());
    if (url.is_tls && !next->is_tls)
      throw_error(ErrorCode::kData,
                  fmt::format("{} redirects to {}, which is not encrypted", url.to_string(), next->origin()));
    url = std::move(*next);
  }
  throw_error(ErrorCode::kUnavailable, fmt::format("{}: more than {} redirects", first, kMaxRedirects));
}

asio::awaitable<size_t> HubClient::read_some(std::span<std::byte> into) {
  return current_->read_some(into);
}

asio::awaitable<std::string> HubClient::read_text(size_t limit) {
  return current_->read_text(limit);
}

Url HubClient::file_url(const std::string& repo, const std::string& commit, const std::string& path) const {
  return api_url('/' + repo + "/resolve/" + commit + '/' + percent_encode(path, true));
}

Url HubClient::api_url(const std::string& path) const {
  Url url = settings_.endpoint;
  url.target += path;
  return url;
}

bool is_temporary(unsigned status) {
  return status == kRequestTimeout || status == kTooManyRequests || status >= kServerErrors;
}

std::optional<std::chrono::seconds> retry_after(const HttpHead& head) {
  const auto asked = read_seconds(without_blanks(head.field("Retry-After")));
  return head.status == kTooManyRequests ? std::max(asked, read_reset(head.field("RateLimit"))) : asked;
}

namespace {

/// Returns whether requests to the hub have the token: not where a proxy would read it.
bool sends_token(const HubSettings& settings) {
  if (settings.token.empty()) return false;
  const auto proxy = settings.proxies.find(settings.endpoint);
  return settings.endpoint.is_tls || (proxy && *proxy == nullptr);
}

}  // namespace

Error hub_error(const HttpHead& head, const HubSettings& settings, const RepoRef& repo, std::string_view file) {
  const std::string where = settings.endpoint.origin();
  const std::string_view code = head.field("X-Error-Code");
  const bool has_token = sends_token(settings);
  if (code == "GatedRepo") {
    return make_error(ErrorCode::kInvalidArgument, "{} at {} is gated: {}", repo.id, where,
                      has_token ? "the account of HF_TOKEN has not been given access; ask for it on the model's page"
                                : "ask for access on the model's page, and set HF_TOKEN to a token of that account");
  }
  if (code == "RevisionNotFound")
    return make_error(ErrorCode::kNotFound, "{} at {} has no revision '{}'", repo.id, where, repo.revision);
  if (code == "EntryNotFound" || (head.status == kNotFound && !file.empty()))
    return make_error(ErrorCode::kNotFound, "{} at {} has no file '{}'", repo.to_string(), where, file);
  const std::string_view message = head.field("X-Error-Message");
  const std::string reason = message.empty() ? std::string() : fmt::format(": {}", message);
  // The hub answers so for public models, too.
  if (head.status == kUnauthorized && has_token && code.empty())
    return make_error(ErrorCode::kInvalidArgument, "{} at {}: the token of HF_TOKEN is not accepted{}", repo.id, where,
                      reason);
  if (code == "RepoNotFound" || head.status == kUnauthorized || head.status == kNotFound) {
    return make_error(ErrorCode::kNotFound, "{} at {} does not exist, or is private{}", repo.id, where,
                      has_token                ? " and not open to the account of HF_TOKEN"
                      : settings.token.empty() ? "; HF_TOKEN is not set"
                                               : "; HF_TOKEN is not sent through a proxy to an http hub");
  }
  if (head.status == kForbidden)
    return make_error(ErrorCode::kInvalidArgument, "{} at {}: access is refused (403){}", repo.id, where, reason);
  if (is_temporary(head.status))
    return make_error(ErrorCode::kUnavailable, "{} at {}: the hub answers {}{}", repo.id, where, head.status, reason);
  return make_error(ErrorCode::kInvalidArgument, "{} at {}: the hub answers {}, wanted 200{}", repo.id, where,
                    head.status, reason);
}

}  // namespace millrace::hub
