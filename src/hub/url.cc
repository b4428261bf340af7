#include "hub/url.h"

#include <fmt/core.h>

#include <algorithm>
#include <boost/url.hpp>
#include <charconv>

namespace millrace::hub {
namespace {

namespace urls = boost::urls;

constexpr uint16_t kHttpPort = 80;
constexpr uint16_t kHttpsPort = 443;

std::string bracketed(const std::string& host) {
  return host.find(':') == std::string::npos ? host : '[' + host + ']';
}

/// Returns the parts of an absolute URL, or why there is none.
Result<Url> take_apart(const urls::url_view_base& parsed, std::string_view text) {
  Url url;
  if (parsed.scheme_id() == urls::scheme::http) {
    url.is_tls = false;
  } else if (parsed.scheme_id() != urls::scheme::https) {
    return make_error(ErrorCode::kInvalidArgument, "'{}': its scheme is not http or https", text);
  }
  // Decoded, such a host could hold line ends, which would end a line of a request.
  if (std::string_view(parsed.encoded_host()).find('%') != std::string_view::npos)
    return make_error(ErrorCode::kInvalidArgument, "'{}': its host has encoded characters", text);
  url.host = parsed.host_address();
  if (url.host.empty()) return make_error(ErrorCode::kInvalidArgument, "'{}' names no host", text);
  url.port = url.is_tls ? kHttpsPort : kHttpPort;
  const std::string_view port(parsed.port());
  if (!port.empty()) {
    const auto [end, failure] = std::from_chars(port.data(), port.data() + port.size(), url.port);
    if (failure != std::errc() || end != port.data() + port.size() || url.port == 0)
      return make_error(ErrorCode::kInvalidArgument, "'{}': its port is not 1 to 65535", text);
  }
  url.target = std::string(std::string_view(parsed.encoded_path()));
  if (url.target.empty()) url.target = "/";
  if (parsed.has_query()) url.target += '?' + std::string(std::string_view(parsed.encoded_query()));
  return url;
}

/// Encodes what a Location may not hold after its host, as browsers do: signed URLs of storage servers come with spaces
/// and quotes.
std::string with_encoded_tail(std::string_view text) {
  const size_t scheme = text.find("://");
  const bool has_scheme = scheme != std::string_view::npos && text.find_first_of("/?#") == scheme + 1;
  const size_t host = has_scheme ? scheme + 3 : (text.starts_with("//") ? 2 : 0);
  const size_t tail = host == 0 ? 0 : std::min(text.find_first_of("/?#", host), text.size());
  std::string encoded(text.substr(0, tail));
  for (const char c : text.substr(tail)) {
    constexpr std::string_view kForbidden = "\"<>[\\]^`{|} ";
    if (static_cast<unsigned char>(c) > ' ' && static_cast<unsigned char>(c) < 0x7F &&
        kForbidden.find(c) == std::string_view::npos) {
      encoded += c;
    } else {
      encoded += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return encoded;
}

}  // namespace

std::string Url::host_header() const {
  const bool has_default_port = port == (is_tls ? kHttpsPort : kHttpPort);
  return has_default_port ? bracketed(host) : fmt::format("{}:{}", bracketed(host), port);
}

std::string Url::origin() const {
  return (is_tls ? "https://" : "http://") + host_header();
}

Result<Url> parse_url(std::string_view text) {
  const auto parsed = urls::parse_uri(text);
  if (parsed.has_error())
    return make_error(ErrorCode::kInvalidArgument, "'{}' is no URL, wanted one like https://host/path", text);
  return take_apart(*parsed, text);
}

Result<Url> resolve_location(const Url& base, std::string_view location) {
  const std::string base_text = base.to_string();
  const std::string reference = with_encoded_tail(location);
  const auto from = urls::parse_uri(base_text);
  const auto to = urls::parse_uri_reference(reference);
  urls::url target;
  if (from.has_error() || to.has_error() || urls::resolve(*from, *to, target).has_error())
    return make_error(ErrorCode::kData, "{} redirects to '{}', which is no URL", base_text, location);
  auto url = take_apart(target, location);
  if (url.has_error()) return make_error(ErrorCode::kData, "{} redirects to {}", base_text, url.error().message);
  return url;
}

std::string percent_encode(std::string_view text, bool keeps_slashes) {
  constexpr std::string_view kUnreserved = "-._~";
  std::string encoded;
  for (const char c : text) {
    const bool is_alphanumeric = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (is_alphanumeric || kUnreserved.find(c) != std::string_view::npos || (keeps_slashes && c == '/')) {
      encoded += c;
    } else {
      encoded += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return encoded;
}

}  // namespace millrace::hub
