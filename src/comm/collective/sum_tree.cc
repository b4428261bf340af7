#include "comm/collective/sum_tree.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"

namespace millrace::comm {
namespace {

constexpr int64_t kBlock = 512;  // values that are summed before they are written out; they stay in the L1 cache

template <class Value>
void add_values(const Value* left, const Value* right, Value* into, int64_t count) {
  for (int64_t i = 0; i < count; ++i) into[i] = left[i] + right[i];
}

/// Adds all sums of the tree over one block.
template <class Value>
void add_block(std::span<const Value* const> sums, int64_t begin, int64_t size, Value* into) {
  if (sums.size() == 1) {
    std::memcpy(into, sums[0] + begin, static_cast<size_t>(size) * sizeof(Value));
  } else if (sums.size() == 2) {
    add_values(sums[0] + begin, sums[1] + begin, into, size);
  } else {
    std::array<Value, kBlock> right;
    const size_t half = sums.size() / 2;
    add_block<Value>(sums.first(half), begin, size, into);
    add_block<Value>(sums.subspan(half), begin, size, right.data());
    add_values<Value>(into, right.data(), into, size);
  }
}

template <class Value>
void add_whole_tree(std::span<const Value* const> sums, std::span<Value* const> outs, int64_t begin, int64_t end) {
  const size_t count = sums.size();
  CHECK(count == 1 || count == 2 || count == 4 || count == 8, "a tree of {} sums, wanted 1, 2, 4 or 8", count);
  std::array<Value, kBlock> block;
  for (int64_t at = begin; at < end; at += kBlock) {
    const int64_t size = std::min(kBlock, end - at);
    add_block(sums, at, size, block.data());
    for (Value* out : outs) std::memcpy(out + at, block.data(), static_cast<size_t>(size) * sizeof(Value));
  }
}

}  // namespace

void add_pair(const float* left, const float* right, float* into, int64_t count) {
  add_values(left, right, into, count);
}

void add_pair(const int32_t* left, const int32_t* right, int32_t* into, int64_t count) {
  add_values(left, right, into, count);
}

void add_tree(std::span<const float* const> sums, std::span<float* const> outs, int64_t begin, int64_t end) {
  add_whole_tree(sums, outs, begin, end);
}

void add_tree(std::span<const int32_t* const> sums, std::span<int32_t* const> outs, int64_t begin, int64_t end) {
  add_whole_tree(sums, outs, begin, end);
}

}  // namespace millrace::comm
