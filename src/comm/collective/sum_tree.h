#pragma once

#include <cstdint>
#include <span>

/// The additions of collectives, in the one fixed binary tree of tensor/collective.h. Plain loops over f32 or integers.
namespace millrace::comm {

/// into[i] = left[i] + right[i] over `count` values. `into` may be either of the others.
void add_pair(const float* left, const float* right, float* into, int64_t count);
/// Adds integers, which do not overflow.
void add_pair(const int32_t* left, const int32_t* right, int32_t* into, int64_t count);

/// Adds the values [begin, end) of all `sums` pairwise: neighbours, pairs, then fours. Writes the result to the same
/// values of each of `outs`, which may be the `sums`. There are 1, 2, 4 or 8 sums.
void add_tree(std::span<const float* const> sums, std::span<float* const> outs, int64_t begin, int64_t end);
/// Adds integers, whose order does not matter.
void add_tree(std::span<const int32_t* const> sums, std::span<int32_t* const> outs, int64_t begin, int64_t end);

}  // namespace millrace::comm
