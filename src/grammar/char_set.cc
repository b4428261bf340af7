#include "grammar/char_set.h"

#include <algorithm>
#include <iterator>

namespace millrace::grammar {
namespace {

constexpr char32_t kFirstSurrogate = 0xD800;
constexpr char32_t kLastSurrogate = 0xDFFF;

/// The largest character of each length of UTF-8.
constexpr char32_t kLargest[] = {0x7F, 0x7FF, 0xFFFF, CharSet::kMaxCodePoint};

void encode(char32_t c, uint32_t length, uint8_t* out) {
  if (length == 1) {
    out[0] = static_cast<uint8_t>(c);
    return;
  }
  for (uint32_t i = length - 1; i > 0; --i, c >>= 6) out[i] = static_cast<uint8_t>(0x80 | (c & 0x3F));
  out[0] = static_cast<uint8_t>((0xF00 >> length) | c);
}

/// Appends the byte ranges of characters whose UTF-8 has one length. Cuts the range into pieces in which all bytes
/// after the first that differs take every value.
void append_byte_ranges(char32_t low, char32_t high, uint32_t length, std::vector<Utf8ByteRange>& runs) {
  for (uint32_t tail = 1; tail < length; ++tail) {
    const char32_t mask = (char32_t{1} << (6 * tail)) - 1;
    if ((low & ~mask) == (high & ~mask)) continue;
    if ((low & mask) != 0) {
      append_byte_ranges(low, low | mask, length, runs);
      append_byte_ranges((low | mask) + 1, high, length, runs);
      return;
    }
    if ((high & mask) != mask) {
      append_byte_ranges(low, (high & ~mask) - 1, length, runs);
      append_byte_ranges(high & ~mask, high, length, runs);
      return;
    }
  }
  Utf8ByteRange& run = runs.emplace_back();
  run.length = length;
  encode(low, length, run.low);
  encode(high, length, run.high);
}

}  // namespace

void CharSet::add(char32_t low, char32_t high) {
  high = std::min(high, kMaxCodePoint);
  if (low > high) return;
  if (low <= kLastSurrogate && high >= kFirstSurrogate) {
    if (low < kFirstSurrogate) add(low, kFirstSurrogate - 1);
    if (high > kLastSurrogate) add(kLastSurrogate + 1, high);
    return;
  }
  if (ranges_.empty() || ranges_.back().high + 1 < low) {
    ranges_.push_back({low, high});
    return;
  }
  std::vector<Range> merged;
  merged.reserve(ranges_.size() + 1);
  Range added{low, high};
  bool is_placed = false;
  for (const Range& range : ranges_) {
    if (range.high + 1 < added.low) {
      merged.push_back(range);
    } else if (added.high + 1 < range.low) {
      if (!is_placed) merged.push_back(added);
      is_placed = true;
      merged.push_back(range);
    } else {
      added = {std::min(added.low, range.low), std::max(added.high, range.high)};
    }
  }
  if (!is_placed) merged.push_back(added);
  ranges_ = std::move(merged);
}

void CharSet::add(const CharSet& other) {
  std::vector<Range> all;
  all.reserve(ranges_.size() + other.ranges_.size());
  std::ranges::merge(ranges_, other.ranges_, std::back_inserter(all), {}, &Range::low, &Range::low);
  ranges_.clear();
  for (const Range& range : all) {
    if (!ranges_.empty() && range.low <= ranges_.back().high + 1) {
      ranges_.back().high = std::max(ranges_.back().high, range.high);
    } else {
      ranges_.push_back(range);
    }
  }
}

CharSet CharSet::complement() const {
  CharSet rest;
  char32_t next = 0;
  for (const Range& range : ranges_) {
    if (range.low > next) rest.add(next, range.low - 1);
    next = range.high + 1;
  }
  if (next <= kMaxCodePoint) rest.add(next, kMaxCodePoint);
  return rest;
}

CharSet CharSet::without(const CharSet& other) const {
  CharSet excluded = complement();
  excluded.add(other);
  return excluded.complement();
}

CharSet CharSet::with_both_cases() const {
  CharSet both = *this;
  for (char32_t lower = U'a'; lower <= U'z'; ++lower) {
    const char32_t upper = lower - U'a' + U'A';
    if (contains(lower)) both.add(upper, upper);
    if (contains(upper)) both.add(lower, lower);
  }
  return both;
}

bool CharSet::contains(char32_t c) const {
  return std::ranges::any_of(ranges_, [c](const Range& range) { return range.low <= c && c <= range.high; });
}

std::vector<Utf8ByteRange> utf8_byte_ranges(const CharSet& set) {
  std::vector<Utf8ByteRange> runs;
  for (const CharSet::Range& range : set.ranges()) {
    char32_t low = range.low;
    for (uint32_t length = 1; length <= 4 && low <= range.high; ++length) {
      const char32_t high = std::min(range.high, kLargest[length - 1]);
      if (low > high) continue;
      append_byte_ranges(low, high, length, runs);
      low = high + 1;
    }
  }
  return runs;
}

}  // namespace millrace::grammar
