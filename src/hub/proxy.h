#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "hub/url.h"

namespace millrace::hub {

/// Returns the value of a variable of the environment, or nothing.
using Environment = std::function<std::optional<std::string>(const char*)>;

/// An HTTP proxy: http URLs are requested from it, and https URLs through a tunnel that it opens.
struct Proxy {
  std::string host;
  uint16_t port = 80;
  std::string authorization;  ///< the value of Proxy-Authorization; empty: none

  /// Returns "host:port", without credentials.
  [[nodiscard]] std::string to_string() const;
};

/// Which requests go through which proxy. Values only.
struct ProxySettings {
  std::optional<Proxy> for_http;        ///< http_proxy, all_proxy
  std::optional<Proxy> for_https;       ///< https_proxy, all_proxy
  std::vector<std::string> exceptions;  ///< no_proxy: hosts, their domains, or "*"

  /// Returns the proxy of a URL, or null for one that is reached directly.
  [[nodiscard]] const Proxy* find(const Url& url) const;
};

/// Reads the variables in small letters, then those in capitals. Errors name the variable and quote no credentials.
[[nodiscard]] Result<ProxySettings> proxy_settings(const Environment& environment);

/// Returns the request that opens a tunnel to the host of a URL.
[[nodiscard]] std::string tunnel_request(const Proxy& proxy, const Url& url);
/// Returns the status in the head of an answer; 0 where there is none.
[[nodiscard]] unsigned status_of(std::string_view head);

}  // namespace millrace::hub
