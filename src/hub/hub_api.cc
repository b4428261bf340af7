#include "hub/hub_api.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/json_value.h"
#include "hub/retry.h"

namespace millrace::hub {
namespace {

constexpr unsigned kOk = 200;
constexpr size_t kMaxAnswerBytes = size_t{64} << 20;
constexpr int kMaxPages = 1000;

[[noreturn]] void refuse_answer(const RepoRef& repo, std::string_view what) {
  throw_error(ErrorCode::kData, fmt::format("{}: the hub's answer {}", repo.id, what));
}

/// A body and the JSON in it.
struct Answer {
  HttpHead head;
  std::string text;
  JsonDocument document;
};

/// Where questions go, and what they are about.
struct Inquiry {
  async::Runtime& runtime;
  HubClient& client;
  const HubSettings& settings;
  const RepoRef& repo;
  Retry& retry;
};

asio::awaitable<void> receive(const Inquiry& inquiry, const Url& url, Answer& answer) {
  for (;;) {
    Error problem;
    std::optional<std::chrono::seconds> asked;
    try {
      answer.head = co_await inquiry.client.get(url);
      answer.text = co_await inquiry.client.read_text(kMaxAnswerBytes);
      if (answer.head.status == kOk) {
        inquiry.retry.note_progress();
        co_return;
      }
      asked = retry_after(answer.head);
      problem = hub_error(answer.head, inquiry.settings, inquiry.repo);
    } catch (const ErrorException& failure) {
      problem = failure.error();
    }
    co_await inquiry.retry.wait(inquiry.runtime, std::move(problem), asked);
  }
}

asio::awaitable<std::unique_ptr<Answer>> ask(const Inquiry& inquiry, const Url& url) {
  auto answer = std::make_unique<Answer>();
  co_await receive(inquiry, url, *answer);
  const RepoRef& repo = inquiry.repo;
  auto document = JsonDocument::parse(answer->text);
  if (document.has_error()) refuse_answer(repo, "is no JSON: " + document.error().message);
  answer->document = std::move(*document);
  co_return answer;
}

/// Reads one entry of a tree; nothing for a folder.
std::optional<RepoFile> read_entry(const RepoRef& repo, JsonValue entry) {
  std::string_view type;
  std::string_view path;
  if (!entry["type"].get(type) || !entry["path"].get(path)) refuse_answer(repo, "has an entry without type or path");
  if (type != "file") return std::nullopt;
  if (!is_safe_path(path)) refuse_answer(repo, fmt::format("has a file '{}', which leaves its folder", path));
  const JsonValue lfs = entry["lfs"];
  const JsonValue source = lfs.is_object() ? lfs : entry;
  RepoFile file;
  file.path = path;
  std::string_view etag;
  if (!source["size"].get(file.size_bytes) || !source["oid"].get(etag))
    refuse_answer(repo, fmt::format("has no size or oid of '{}'", path));
  constexpr std::string_view kSha256 = "sha256:";
  if (etag.starts_with(kSha256)) etag.remove_prefix(kSha256.size());
  const auto is_hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  constexpr size_t kSha1Digits = 40;
  constexpr size_t kSha256Digits = 64;
  if ((etag.size() != kSha1Digits && etag.size() != kSha256Digits) || !std::ranges::all_of(etag, is_hex))
    refuse_answer(repo, fmt::format("has the oid '{}' of '{}', wanted a hash", etag, path));
  file.etag = etag;
  return file;
}

/// Returns the URL of the next page in a Link field: `<URL>; rel="next"`.
std::optional<std::string> next_page(std::string_view link) {
  while (!link.empty()) {
    const size_t begin = link.find('<');
    const size_t end = link.find('>', begin == std::string_view::npos ? 0 : begin);
    if (begin == std::string_view::npos || end == std::string_view::npos) return std::nullopt;
    const std::string_view rest = link.substr(end + 1);
    const size_t comma = rest.find(',');
    if (rest.substr(0, comma).find("rel=\"next\"") != std::string_view::npos)
      return std::string(link.substr(begin + 1, end - begin - 1));
    link = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
  }
  return std::nullopt;
}

asio::awaitable<std::string> resolve_commit(const Inquiry& inquiry) {
  const RepoRef& repo = inquiry.repo;
  const Url url =
      inquiry.client.api_url("/api/models/" + repo.id + "/revision/" + percent_encode(repo.revision, false));
  const auto answer = co_await ask(inquiry, url);
  std::string_view commit;
  if (!answer->document.root()["sha"].get(commit) || !is_commit(commit)) refuse_answer(repo, "names no commit");
  co_return std::string(commit);
}

}  // namespace

const RepoFile* RepoListing::find(std::string_view path) const {
  const auto found = std::ranges::find(files, path, &RepoFile::path);
  return found == files.end() ? nullptr : &*found;
}

bool is_safe_path(std::string_view path) {
  if (path.empty() || path.find('\0') != std::string_view::npos || path.find('\\') != std::string_view::npos)
    return false;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") return false;
    begin = end + 1;
  }
  return true;
}

asio::awaitable<RepoListing> list_repo(async::Runtime& runtime, HubClient& client, const HubSettings& settings,
                                       RepoRef repo) {
  Retry retry(settings.retry_delay, settings.patience);
  const Inquiry inquiry{.runtime = runtime, .client = client, .settings = settings, .repo = repo, .retry = retry};
  RepoListing listing;
  listing.commit = co_await resolve_commit(inquiry);
  Url url = client.api_url("/api/models/" + repo.id + "/tree/" + listing.commit + "?recursive=true");
  for (int page = 0; page < kMaxPages; ++page) {
    const auto answer = co_await ask(inquiry, url);
    JsonArray entries;
    if (!answer->document.root().get(entries)) refuse_answer(repo, "lists no files");
    for (const JsonValue entry : entries) {
      if (auto file = read_entry(repo, entry)) listing.files.push_back(std::move(*file));
    }
    const auto next = next_page(answer->head.field("Link"));
    if (!next) co_return listing;
    auto resolved = resolve_location(url, *next);
    if (resolved.has_error()) throw ErrorException(resolved.error());
    url = std::move(*resolved);
  }
  refuse_answer(repo, fmt::format("has more than {} pages", kMaxPages));
}

}  // namespace millrace::hub
