#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace millrace {

/// The replacement character U+FFFD in UTF-8.
inline constexpr std::string_view kReplacementUtf8 = "\xEF\xBF\xBD";

/// One decoding step: `length` bytes, at least 1 for non-empty input, form a code point. When `valid` is false, they
/// are the longest prefix of an ill-formed sequence that one U+FFFD replaces (Unicode 15, section 3.9, best practice).
struct DecodedUtf8 {
  char32_t code_point = 0;
  uint8_t length = 0;
  bool valid = false;
  /// Says whether the input ends inside a sequence that more bytes could complete.
  bool truncated = false;
};

[[nodiscard]] DecodedUtf8 decode_utf8(std::string_view text);
void append_utf8(std::string& out, char32_t code_point);
[[nodiscard]] bool is_valid_utf8(std::string_view text);
/// Returns a copy in which U+FFFD replaces every ill-formed sequence.
[[nodiscard]] std::string replace_invalid_utf8(std::string_view text);

}  // namespace millrace
