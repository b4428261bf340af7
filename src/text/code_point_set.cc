#include "text/code_point_set.h"

#include <algorithm>

namespace millrace::text {
namespace {

constexpr CodePointRange kSurrogates = {0xD800, 0xDFFF};

/// Appends a range of sorted ones, joined to the last if they touch.
void append(std::vector<CodePointRange>& ranges, CodePointRange range) {
  if (range.first > range.last) return;
  if (!ranges.empty() && range.first <= ranges.back().last + 1) {
    ranges.back().last = std::max(ranges.back().last, range.last);
  } else {
    ranges.push_back(range);
  }
}

}  // namespace

CodePointSet CodePointSet::of(std::vector<CodePointRange> ranges) {
  std::ranges::sort(ranges, {}, &CodePointRange::first);
  CodePointSet set;
  for (const CodePointRange& range : ranges) {
    if (range.last < kSurrogates.first || range.first > kSurrogates.last) {
      append(set.ranges_, range);
      continue;
    }
    if (range.first < kSurrogates.first) append(set.ranges_, {range.first, kSurrogates.first - 1});
    if (range.last > kSurrogates.last) append(set.ranges_, {kSurrogates.last + 1, range.last});
  }
  return set;
}

bool CodePointSet::contains(char32_t code_point) const {
  const auto after = std::ranges::upper_bound(ranges_, code_point, {}, &CodePointRange::first);
  return after != ranges_.begin() && code_point <= std::prev(after)->last;
}

CodePointSet CodePointSet::complement() const {
  std::vector<CodePointRange> gaps;
  char32_t next = 0;
  for (const CodePointRange& range : ranges_) {
    if (range.first > next) gaps.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLast) gaps.push_back({next, kLast});
  return of(std::move(gaps));
}

CodePointSet CodePointSet::with(const CodePointSet& other) const {
  std::vector<CodePointRange> all = ranges_;
  all.insert(all.end(), other.ranges_.begin(), other.ranges_.end());
  return of(std::move(all));
}

CodePointSet CodePointSet::common_with(const CodePointSet& other) const {
  CodePointSet common;
  auto a = ranges_.begin();
  auto b = other.ranges_.begin();
  while (a != ranges_.end() && b != other.ranges_.end()) {
    append(common.ranges_, {std::max(a->first, b->first), std::min(a->last, b->last)});
    if (a->last < b->last) {
      ++a;
    } else {
      ++b;
    }
  }
  return common;
}

CodePointSet CodePointSet::minus(const CodePointSet& other) const {
  return common_with(other.complement());
}

CodePointSet CodePointSet::differing_from(const CodePointSet& other) const {
  return minus(other).with(other.minus(*this));
}

}  // namespace millrace::text
