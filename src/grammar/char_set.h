#pragma once

#include <cstdint>
#include <vector>

namespace millrace::grammar {

/// A set of Unicode scalar values (surrogates are never in it).
class CharSet {
 public:
  struct Range {
    char32_t low;
    char32_t high;  ///< in it
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
  [[nodiscard]] bool contains(char32_t c) const;
  [[nodiscard]] bool empty() const { return ranges_.empty(); }
  /// Ascending, apart from each other.
  [[nodiscard]] const std::vector<Range>& ranges() const { return ranges_; }

 private:
  std::vector<Range> ranges_;
};

/// A run of bytes, each within bounds: the UTF-8 of some neighbouring characters.
struct Utf8ByteRange {
  uint32_t length = 0;
  uint8_t low[4] = {};
  uint8_t high[4] = {};
};

/// The UTF-8 of the set's members, and nothing else; no two runs share a text.
[[nodiscard]] std::vector<Utf8ByteRange> utf8_byte_ranges(const CharSet& set);

}  // namespace millrace::grammar
