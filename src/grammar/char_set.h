#pragma once

#include <cstdint>
#include <vector>

namespace millrace::grammar {

/// A set of Unicode scalar values. Surrogates are never members.
class CharSet {
 public:
  struct Range {
    char32_t low;
    char32_t high;  ///< inclusive
    friend bool operator==(const Range&, const Range&) = default;
  };
  static constexpr char32_t kMaxCodePoint = 0x10FFFF;

  CharSet() = default;
  explicit CharSet(char32_t single) { add(single, single); }
  CharSet(char32_t low, char32_t high) { add(low, high); }

  void add(char32_t low, char32_t high);
  void add(const CharSet& other);
  [[nodiscard]] CharSet complement() const;
  [[nodiscard]] CharSet without(const CharSet& other) const;
  /// Returns the members, with the other case of each ASCII letter.
  [[nodiscard]] CharSet with_both_cases() const;
  [[nodiscard]] bool contains(char32_t c) const;
  [[nodiscard]] bool empty() const { return ranges_.empty(); }
  /// Returns the ranges in ascending order. No two touch.
  [[nodiscard]] const std::vector<Range>& ranges() const { return ranges_; }

 private:
  std::vector<Range> ranges_;
};

/// A sequence of byte ranges: the UTF-8 of adjacent characters.
struct Utf8ByteRange {
  uint32_t length = 0;
  uint8_t low[4] = {};
  uint8_t high[4] = {};
};

/// Returns byte ranges that match the UTF-8 of the members and nothing else. No two match the same text.
[[nodiscard]] std::vector<Utf8ByteRange> utf8_byte_ranges(const CharSet& set);

}  // namespace millrace::grammar
