#pragma once

#include <algorithm>
#include <string_view>

namespace millrace::text {

/// Returns how many of the last bytes of `text` may begin `word`. `text` does not contain `word`.
inline size_t partial_match_length(std::string_view text, std::string_view word) {
  for (size_t length = std::min(text.size(), word.size() - 1); length > 0; --length) {
    if (text.ends_with(word.substr(0, length))) return length;
  }
  return 0;
}

/// The white space of JSON and of the tags around it.
inline constexpr std::string_view kAsciiSpace = " \t\r\n";

/// Returns the length of `text` without white space at its end.
inline size_t size_without_space(std::string_view text) {
  const size_t last = text.find_last_not_of(kAsciiSpace);
  return last == std::string_view::npos ? 0 : last + 1;
}

/// Returns `text` without white space at either end.
inline std::string_view without_space(std::string_view text) {
  const size_t first = text.find_first_not_of(kAsciiSpace);
  return first == std::string_view::npos ? std::string_view() : text.substr(first, size_without_space(text) - first);
}

/// Limits the white space that is delayed because a tag may follow. Longer white space is content.
inline constexpr size_t kMaxHeldBackSpace = 256;

}  // namespace millrace::text
