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

  /// Returns "host:port", or "[address]:port", without credentials.
  [[nodiscard]] std::string to_string() const;
};

/// Which requests go through which proxy. Values only. A variable that cannot be used is an error for the requests that
/// need it only; errors name the variable and quote no credentials.
struct ProxySettings {
  std::optional<Result<Proxy>> for_http;   ///< http_proxy, all_proxy
  std::optional<Result<Proxy>> for_https;  ///< https_proxy, all_proxy
  std::vector<std::string> exceptions;     ///< no_proxy: hosts, their domains, or "*"

  /// Returns the proxy of a URL, or null for one that is reached directly, as this machine itself always is. Error:
  /// kInvalidArgument for a variable that cannot be used.
  [[nodiscard]] Result<const Proxy*> find(const Url& url) const;
};

/// Reads the variables in small letters, then those in capitals.
[[nodiscard]] ProxySettings proxy_settings(const Environment& environment);

/// Returns the request that opens a tunnel to the host of a URL.
[[nodiscard]] std::string tunnel_request(const Proxy& proxy, const Url& url);
/// Returns the status in the head of an answer; 0 where there is none.
[[nodiscard]] unsigned status_of(std::string_view head);

}  // namespace millrace::hub
