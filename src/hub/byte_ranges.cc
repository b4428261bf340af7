#include "hub/byte_ranges.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>

namespace millrace::hub {
namespace {

/// Reads a number and what ends it.
bool take_number(std::string_view& text, char end, uint64_t& number) {
  const auto [at, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc() || at == text.data() + text.size() || *at != end) return false;
  text.remove_prefix(static_cast<size_t>(at - text.data()) + 1);
  return true;
}

}  // namespace

void ByteRanges::add(ByteRange range) {
  if (range.begin >= range.end) return;
  auto next = ends_.upper_bound(range.begin);
  if (next != ends_.begin() && std::prev(next)->second >= range.begin) {
    --next;
    range.begin = next->first;
  }
  while (next != ends_.end() && next->first <= range.end) {
    range.end = std::max(range.end, next->second);
    next = ends_.erase(next);
  }
  ends_[range.begin] = range.end;
}

std::vector<ByteRange> ByteRanges::missing(ByteRange range) const {
  std::vector<ByteRange> parts;
  auto next = ends_.upper_bound(range.begin);
  if (next != ends_.begin()) range.begin = std::max(range.begin, std::prev(next)->second);
  for (; range.begin < range.end && next != ends_.end() && next->first < range.end; ++next) {
    parts.push_back({range.begin, next->first});
    range.begin = next->second;
  }
  if (range.begin < range.end) parts.push_back(range);
  return parts;
}

std::vector<ByteRange> ByteRanges::all() const {
  std::vector<ByteRange> ranges;
  for (const auto& [begin, end] : ends_) ranges.push_back({begin, end});
  return ranges;
}

std::string ByteRanges::to_text() const {
  std::string text;
  for (const auto& [begin, end] : ends_) text += fmt::format("{} {}\n", begin, end);
  return text;
}

Result<ByteRanges> ByteRanges::parse(std::string_view text, uint64_t size_bytes) {
  ByteRanges ranges;
  while (!text.empty()) {
    ByteRange range;
    if (!take_number(text, ' ', range.begin) || !take_number(text, '\n', range.end) || range.begin >= range.end ||
        range.end > size_bytes)
      return make_error(ErrorCode::kData, "no list of ranges within {} bytes", size_bytes);
    ranges.add(range);
  }
  return ranges;
}

std::vector<ByteRange> plan_requests(std::vector<ByteRange> wanted, uint64_t gap_bytes, uint64_t piece_bytes) {
  std::ranges::sort(wanted, {}, &ByteRange::begin);
  std::vector<ByteRange> joined;
  for (const ByteRange& range : wanted) {
    if (!joined.empty() && range.begin <= joined.back().end + gap_bytes) {
      joined.back().end = std::max(joined.back().end, range.end);
    } else {
      joined.push_back(range);
    }
  }
  std::vector<ByteRange> pieces;
  for (const ByteRange& range : joined) {
    for (uint64_t begin = range.begin; begin < range.end; begin += piece_bytes)
      pieces.push_back({begin, std::min(range.end, begin + piece_bytes)});
  }
  return pieces;
}

}  // namespace millrace::hub
