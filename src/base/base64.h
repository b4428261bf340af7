#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace millrace {

/// Appends `bytes` in the base64 of RFC 4648, with padding.
void append_base64(std::string& out, std::span<const std::byte> bytes);

/// Returns the bytes that `text` spells, with or without padding; nothing if it is not base64.
[[nodiscard]] std::optional<std::string> decode_base64(std::string_view text);

}  // namespace millrace
