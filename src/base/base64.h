#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace millrace {

/// Appends `bytes` in the base64 of RFC 4648, with padding.
void append_base64(std::string& out, std::span<const std::byte> bytes);

}  // namespace millrace
