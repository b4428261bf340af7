#pragma once

#include "cuda/mma.cuh"

/// Sums over the threads of a block.
namespace millrace::cuda {

/// Threads of a block that sums over one row.
constexpr int kRowBlockThreads = 256;
constexpr int kRowBlockWarps = kRowBlockThreads / kLanes;

/// Returns the sum over a block of kRowBlockThreads threads, in a fixed order, to every thread. `sums` is shared memory
/// [kRowBlockWarps] that no earlier call of the kernel has used.
template <class T>
__device__ T block_sum(T value, T* sums) {
  for (int bits = kLanes / 2; bits > 0; bits /= 2) value += __shfl_xor_sync(kAllLanes, value, bits);
  if (threadIdx.x % kLanes == 0) sums[threadIdx.x / kLanes] = value;
  __syncthreads();
  T total = sums[0];
  for (int w = 1; w < kRowBlockWarps; ++w) total += sums[w];
  return total;
}

}  // namespace millrace::cuda
