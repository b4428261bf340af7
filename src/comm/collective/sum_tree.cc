#include "comm/collective/sum_tree.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"

namespace millrace::comm {
namespace {

constexpr int64_t kBlock = 512;  // values that are summed before they are written out; they stay in the L1 cache

/// Adds sums [first, first + count) of the tree over one block.
void add_block(std::span<const float* const> sums, int64_t begin, int64_t size, float* into) {
  if (sums.size() == 1) {
    std::memcpy(into, sums[0] + begin, static_cast<size_t>(size) * sizeof(float));
  } else if (sums.size() == 2) {
    add_pair(sums[0] + begin, sums[1] + begin, into, size);
  } else {
    std::array<float, kBlock> right;
    const size_t half = sums.size() / 2;
    add_block(sums.first(half), begin, size, into);
    add_block(sums.subspan(half), begin, size, right.data());
    add_pair(into, right.data(), into, size);
  }
}

}  // namespace

void add_pair(const float* left, const float* right, float* into, int64_t count) {
  for (int64_t i = 0; i < count; ++i) into[i] = left[i] + right[i];
}

void add_tree(std::span<const float* const> sums, std::span<float* const> outs, int64_t begin, int64_t end) {
  const size_t count = sums.size();
  CHECK(count == 1 || count == 2 || count == 4 || count == 8, "a tree of {} sums, wanted 1, 2, 4 or 8", count);
  std::array<float, kBlock> block;
  for (int64_t at = begin; at < end; at += kBlock) {
    const int64_t size = std::min(kBlock, end - at);
    add_block(sums, at, size, block.data());
    for (float* out : outs) std::memcpy(out + at, block.data(), static_cast<size_t>(size) * sizeof(float));
  }
}

}  // namespace millrace::comm
