#pragma once

#include <algorithm>
#include <string_view>

namespace millrace::text {

/// How many of the last bytes of `text` may be the beginning of `word`, which does not lie in it.
inline size_t partial_match_length(std::string_view text, std::string_view word) {
  for (size_t length = std::min(text.size(), word.size() - 1); length > 0; --length) {
    if (text.ends_with(word.substr(0, length))) return length;
  }
  return 0;
}

/// What JSON and the tags around it take for space.
inline constexpr std::string_view kAsciiSpace = " \t\r\n";

/// The length of `text` without space at its end.
inline size_t size_without_space(std::string_view text) {
  const size_t last = text.find_last_not_of(kAsciiSpace);
  return last == std::string_view::npos ? 0 : last + 1;
}

/// `text` without space at either end.
inline std::string_view without_space(std::string_view text) {
  const size_t first = text.find_first_not_of(kAsciiSpace);
  return first == std::string_view::npos ? std::string_view() : text.substr(first, size_without_space(text) - first);
}

/// Space that is held back since a tag may follow it, before which it is dropped; what is longer was meant.
inline constexpr size_t kMaxHeldBackSpace = 256;

}  // namespace millrace::text
