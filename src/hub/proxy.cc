#include "hub/proxy.h"

#include <fmt/core.h>

#include <algorithm>
#include <boost/url.hpp>
#include <cctype>
#include <charconv>
#include <span>

#include "base/base64.h"

namespace millrace::hub {
namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), [](unsigned char c) { return std::tolower(c); });
  return result;
}

std::string upper(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), [](unsigned char c) { return std::toupper(c); });
  return result;
}

/// A variable and its value.
struct Setting {
  std::string name;
  std::string value;
};

std::optional<Setting> find_setting(const Environment& environment, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    for (const std::string& each : {std::string(name), upper(name)}) {
      const auto value = environment(each.c_str());
      if (value && !value->empty()) return Setting{.name = each, .value = *value};
    }
  }
  return std::nullopt;
}

Result<std::optional<Proxy>> read_proxy(const std::optional<Setting>& setting) {
  if (!setting) return std::optional<Proxy>();
  const bool has_scheme = setting->value.find("://") != std::string::npos;
  const std::string text = has_scheme ? setting->value : "http://" + setting->value;
  const auto parsed = boost::urls::parse_uri(text);
  // The value may hold a password, so errors do not quote it.
  if (parsed.has_error())
    return make_error(ErrorCode::kInvalidArgument, "{} is no URL, wanted one like http://host:port", setting->name);
  if (parsed->scheme_id() != boost::urls::scheme::http)
    return make_error(ErrorCode::kInvalidArgument, "{} has the scheme '{}', wanted http", setting->name,
                      std::string(std::string_view(parsed->scheme())));
  const auto url = parse_url("http://" + std::string(std::string_view(parsed->encoded_host_and_port())));
  if (url.has_error()) return make_error(ErrorCode::kInvalidArgument, "{}: {}", setting->name, url.error().message);
  Proxy proxy{.host = url->host, .port = url->port};
  if (parsed->has_userinfo()) {
    const std::string credentials = parsed->user() + ':' + parsed->password();
    proxy.authorization = "Basic ";
    append_base64(proxy.authorization, std::as_bytes(std::span(credentials)));
  }
  return std::optional<Proxy>(std::move(proxy));
}

std::vector<std::string> read_exceptions(std::string_view text) {
  std::vector<std::string> exceptions;
  while (!text.empty()) {
    const size_t end = text.find_first_of(", \t");
    std::string_view part = text.substr(0, end);
    if (part != "*") part.remove_prefix(std::min(part.find_first_not_of("*."), part.size()));
    if (!part.empty()) exceptions.push_back(lower(part));
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  }
  return exceptions;
}

/// Returns host and port as they follow CONNECT.
std::string authority(const Url& url) {
  return fmt::format(fmt::runtime(url.host.find(':') == std::string::npos ? "{}:{}" : "[{}]:{}"), url.host, url.port);
}

}  // namespace

std::string Proxy::to_string() const {
  return fmt::format("{}:{}", host, port);
}

const Proxy* ProxySettings::find(const Url& url) const {
  const std::string host = lower(url.host);
  const std::string with_port = lower(authority(url));
  const auto is_reached_directly = [&](const std::string& exception) {
    if (exception == "*" || exception == host || exception == '[' + host + ']' || exception == with_port) return true;
    return host.ends_with('.' + exception) || with_port.ends_with('.' + exception);
  };
  if (std::ranges::any_of(exceptions, is_reached_directly)) return nullptr;
  const auto& proxy = url.is_tls ? for_https : for_http;
  return proxy ? &*proxy : nullptr;
}

Result<ProxySettings> proxy_settings(const Environment& environment) {
  ProxySettings settings;
  auto for_http = read_proxy(find_setting(environment, {"http_proxy", "all_proxy"}));
  if (for_http.has_error()) return for_http.error();
  auto for_https = read_proxy(find_setting(environment, {"https_proxy", "all_proxy"}));
  if (for_https.has_error()) return for_https.error();
  settings.for_http = std::move(*for_http);
  settings.for_https = std::move(*for_https);
  if (const auto none = find_setting(environment, {"no_proxy"})) settings.exceptions = read_exceptions(none->value);
  return settings;
}

std::string tunnel_request(const Proxy& proxy, const Url& url) {
  std::string text = fmt::format("CONNECT {0} HTTP/1.1\r\nHost: {0}\r\n", authority(url));
  if (!proxy.authorization.empty()) text += "Proxy-Authorization: " + proxy.authorization + "\r\n";
  return text + "\r\n";
}

unsigned status_of(std::string_view head) {
  const size_t space = head.find(' ');
  if (!head.starts_with("HTTP/1.") || space == std::string_view::npos) return 0;
  unsigned status = 0;
  std::from_chars(head.data() + space + 1, head.data() + head.size(), status);
  return status;
}

}  // namespace millrace::hub
