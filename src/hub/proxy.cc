#include "hub/proxy.h"

#include <arpa/inet.h>
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

std::string_view without_whitespace(std::string_view text) {
  constexpr std::string_view kWhitespace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kWhitespace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kWhitespace) + 1 - begin);
}

std::optional<Setting> find_setting(const Environment& environment, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    for (const std::string& each : {std::string(name), upper(name)}) {
      const auto value = environment(each.c_str());
      if (value && !without_whitespace(*value).empty())
        return Setting{.name = each, .value = std::string(without_whitespace(*value))};
    }
  }
  return std::nullopt;
}

Result<Proxy> read_proxy(const Setting& setting) {
  const bool has_scheme = setting.value.find("://") != std::string::npos;
  const std::string text = has_scheme ? setting.value : "http://" + setting.value;
  const auto parsed = boost::urls::parse_uri(text);
  // The value may hold a password, so errors do not quote it.
  if (parsed.has_error())
    return make_error(ErrorCode::kInvalidArgument, "{} is no URL, wanted one like http://host:port", setting.name);
  if (parsed->scheme_id() != boost::urls::scheme::http)
    return make_error(ErrorCode::kInvalidArgument, "{} has the scheme '{}', wanted http", setting.name,
                      std::string(std::string_view(parsed->scheme())));
  const std::string_view path(parsed->encoded_path());
  // A password with one of these signs ends the host early.
  if ((!path.empty() && path != "/") || parsed->has_query() || parsed->has_fragment())
    return make_error(ErrorCode::kInvalidArgument,
                      "{} has something after its host and port, wanted http://host:port; '/', '?' and '#' in "
                      "credentials are written %2F, %3F and %23",
                      setting.name);
  const auto url = parse_url("http://" + std::string(std::string_view(parsed->encoded_host_and_port())));
  if (url.has_error()) return make_error(ErrorCode::kInvalidArgument, "{}: {}", setting.name, url.error().message);
  Proxy proxy{.host = url->host, .port = url->port};
  if (!std::string_view(parsed->encoded_userinfo()).empty()) {
    const std::string credentials = parsed->user() + ':' + parsed->password();
    proxy.authorization = "Basic ";
    append_base64(proxy.authorization, std::as_bytes(std::span(credentials)));
  }
  return proxy;
}

std::optional<Result<Proxy>> read_proxy(const Environment& environment, const char* name) {
  const auto setting = find_setting(environment, {name, "all_proxy"});
  if (!setting) return std::nullopt;
  return read_proxy(*setting);
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

std::string host_and_port(const std::string& host, uint16_t port) {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port) : fmt::format("[{}]:{}", host, port);
}

/// Returns host and port as they follow CONNECT.
std::string authority(const Url& url) {
  return host_and_port(url.host, url.port);
}

/// Returns whether a host, in small letters, is this machine.
bool is_loopback(const std::string& host) {
  if (host == "localhost" || host.ends_with(".localhost")) return true;
  constexpr uint32_t kLoopbackNet = 127;
  constexpr int kNetShift = 24;
  in_addr v4{};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> kNetShift == kLoopbackNet;
  in6_addr v6{};
  return inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

}  // namespace

std::string Proxy::to_string() const {
  return host_and_port(host, port);
}

Result<const Proxy*> ProxySettings::find(const Url& url) const {
  constexpr const Proxy* kNone = nullptr;
  const std::string host = lower(url.host);
  if (is_loopback(host)) return kNone;
  const std::string with_port = lower(authority(url));
  const auto is_reached_directly = [&](const std::string& exception) {
    if (exception == "*" || exception == host || exception == '[' + host + ']' || exception == with_port) return true;
    return host.ends_with('.' + exception) || with_port.ends_with('.' + exception);
  };
  if (std::ranges::any_of(exceptions, is_reached_directly)) return kNone;
  const auto& proxy = url.is_tls ? for_https : for_http;
  if (!proxy) return kNone;
  if (proxy->has_error()) return proxy->error();
  const Proxy& found = **proxy;
  return &found;
}

ProxySettings proxy_settings(const Environment& environment) {
  ProxySettings settings;
  settings.for_http = read_proxy(environment, "http_proxy");
  settings.for_https = read_proxy(environment, "https_proxy");
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
