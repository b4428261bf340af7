#pragma once

#include "cuda_bench.h"

/// What the parts of bench/cuda_ops share.
namespace millrace::bench {

inline constexpr size_t kColdBytes = size_t{512} << 20;  ///< more than any cache holds: operands take turns
/// How many copies of `bytes` are more than any cache holds.
inline size_t cold_copies(size_t bytes) {
  return kColdBytes / bytes + 1;
}

/// The experts of one layer in Qwen3-30B-A3B's shape, with rows that choose at random, beside what bounds them: reading
/// the weights of the chosen at the rate of a copy (bytes per second), or a dense product's operations.
void measure_experts(cudaStream_t stream, double copy_rate);

}  // namespace millrace::bench
