#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace millrace::hub {

/// An absolute http or https URL, taken apart for a connection.
struct Url {
  bool is_tls = true;
  std::string host;  ///< a name or an address, without brackets
  uint16_t port = 443;
  std::string target = "/";  ///< path and query, percent-encoded

  /// Returns "https://host:port" without a default port. Connections and credentials belong to one origin.
  [[nodiscard]] std::string origin() const;
  [[nodiscard]] std::string to_string() const { return origin() + target; }
  /// Returns the value of the Host header.
  [[nodiscard]] std::string host_header() const;
};

/// Parses an absolute URL. Error: kInvalidArgument, which quotes the text.
[[nodiscard]] Result<Url> parse_url(std::string_view text);
/// Resolves a Location header against the URL that sent it (RFC 3986, section 5). Error: kData.
[[nodiscard]] Result<Url> resolve_location(const Url& base, std::string_view location);
/// Returns `text` with all bytes percent-encoded but letters, digits and "-._~", and "/" where `keeps_slashes`.
[[nodiscard]] std::string percent_encode(std::string_view text, bool keeps_slashes);

}  // namespace millrace::hub
