#pragma once

#include <fmt/core.h>

#include <cctype>
#include <span>
#include <string>

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

}  // namespace millrace::test
