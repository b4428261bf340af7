#pragma once

#include <fmt/core.h>

#include <cctype>
#include <span>
#include <string>
#include <string_view>

namespace millrace::test {

/// Returns two digits per byte without separators.
inline std::string hex_of(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) text += fmt::format("{:02x}", std::to_integer<int>(byte));
  return text;
}

/// Returns hexadecimal `fields` without their blanks and line ends.
inline std::string hex_of(std::string fields) {
  std::erase_if(fields, [](unsigned char character) { return std::isspace(character) != 0; });
  return fields;
}

/// Returns the bytes that pairs of digits stand for.
inline std::string from_hex(std::string_view hex) {
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) bytes += static_cast<char>(digit(hex[i]) << 4 | digit(hex[i + 1]));
  return bytes;
}

}  // namespace millrace::test
