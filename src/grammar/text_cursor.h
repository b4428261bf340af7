#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "base/result.h"
#include "base/utf8.h"
#include "grammar/char_set.h"

namespace millrace::grammar {

inline bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
inline bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
inline bool is_alphanumeric(char c) {
  return is_digit(c) || is_letter(c);
}

/// A reader's position in a notation, on the stack of one parse. Throws ErrorException with the position for errors.
class TextCursor {
 public:
  explicit TextCursor(std::string_view text) : text_(text) {}

  [[nodiscard]] bool at_end() const { return at_ == text_.size(); }
  [[nodiscard]] size_t offset() const { return at_; }
  /// Returns the next byte, or 0 at the end.
  [[nodiscard]] char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  [[nodiscard]] std::string_view rest() const { return text_.substr(at_); }
  void skip(size_t bytes = 1) { at_ = std::min(at_ + bytes, text_.size()); }
  bool take(std::string_view word) {
    if (!rest().starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  /// Reads the next character.
  char32_t take_char() {
    if (at_end()) fail("it ends too early");
    const DecodedUtf8 step = decode_utf8(rest());
    if (!step.valid) fail("it is not valid UTF-8");
    at_ += step.length;
    return step.code_point;
  }
  /// Reads a decimal number of at most `limit`, if there is one.
  std::optional<uint32_t> take_number(uint32_t limit) {
    if (!is_digit(peek())) return std::nullopt;
    uint32_t number = 0;
    while (is_digit(peek())) {
      number = number * 10 + static_cast<uint32_t>(peek() - '0');
      if (number > limit) fail(fmt::format("a count is larger than {}", limit));
      skip();
    }
    return number;
  }
  /// Reads exactly `digits` hexadecimal digits.
  char32_t take_hex(uint32_t digits) {
    char32_t value = 0;
    for (uint32_t i = 0; i < digits; ++i, skip()) {
      const char c = peek();
      const char lower = static_cast<char>(c | 0x20);
      if (!is_digit(c) && (lower < 'a' || lower > 'f')) fail(fmt::format("wanted {} hexadecimal digits", digits));
      value = value * 16 + static_cast<char32_t>(is_digit(c) ? c - '0' : lower - 'a' + 10);
    }
    if (value > CharSet::kMaxCodePoint || (value >= 0xD800 && value <= 0xDFFF)) fail("there is no such character");
    return value;
  }
  [[noreturn]] void fail(std::string_view problem) const {
    throw ErrorException(make_error(ErrorCode::kInvalidArgument, "{} (at byte {})", problem, at_));
  }

 private:
  std::string_view text_;
  size_t at_ = 0;
};

/// Reads the rest of `{n}`, `{n,}` or `{n,m}` after the opening brace.
struct RepeatRange {
  uint32_t min = 0;
  std::optional<uint32_t> max;
};
inline constexpr uint32_t kMaxRepetitions = 100'000;
/// Limits the consecutive quantifiers of one term, since each nests the tree.
inline constexpr uint32_t kMaxQuantifiers = 16;
[[nodiscard]] inline RepeatRange take_repeat_range(TextCursor& cursor) {
  RepeatRange counts;
  const auto first = cursor.take_number(kMaxRepetitions);
  counts.min = first.value_or(0);
  if (cursor.take(",")) {
    counts.max = cursor.take_number(kMaxRepetitions);
    if (!first && !counts.max) cursor.fail("wanted a count");
  } else {
    if (!first) cursor.fail("wanted a count");
    counts.max = first;
  }
  if (!cursor.take("}")) cursor.fail("wanted '}' after a count");
  if (counts.max && *counts.max < counts.min) cursor.fail("the counts are the wrong way round");
  return counts;
}

/// Reads the quantifier `*`, `+` or `?` after a term, if there is one.
[[nodiscard]] inline std::optional<RepeatRange> take_quantifier_sign(TextCursor& cursor) {
  if (cursor.take("*")) return RepeatRange{0, std::nullopt};
  if (cursor.take("+")) return RepeatRange{1, std::nullopt};
  if (cursor.take("?")) return RepeatRange{0, 1};
  return std::nullopt;
}

/// Reads the quantifier after a term, if there is one: `*`, `+`, `?`, or counts in braces.
[[nodiscard]] inline std::optional<RepeatRange> take_quantifier(TextCursor& cursor) {
  if (const auto counts = take_quantifier_sign(cursor)) return counts;
  const bool has_counts = cursor.peek() == '{' && (cursor.peek(1) == ',' || is_digit(cursor.peek(1)));
  if (!has_counts) return std::nullopt;
  cursor.skip();
  return take_repeat_range(cursor);
}

}  // namespace millrace::grammar
