#pragma once

// The binary tree in which the sums of shards are added.

#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace millrace::cuda {

/// The first step of each shard of a sum, and the end.
struct ShardSteps {
  int32_t count = 0;  ///< 0: the sum has no shards
  int32_t begin[kMaxShards + 1] = {};
};

/// The levels of subtrees that wait for their other halves.
constexpr int kWaitingSums = 3;
static_assert(1 << kWaitingSums == kMaxShards);

/// Adds `count` partial sums (1, 2, 4 or 8) in the tree. partial(s) is the address of the sum of shard s.
template <class Partial>
__device__ float4 add_partials(int32_t count, const Partial& partial) {
  float4 sum[kMaxShards];
#pragma unroll
  for (int s = 0; s < kMaxShards; ++s) sum[s] = s < count ? __ldcg(partial(s)) : float4{};
#pragma unroll
  for (int half = 1; half < kMaxShards; half *= 2) {
#pragma unroll
    for (int s = 0; s + half < kMaxShards; s += 2 * half) {
      if (s + half >= count) continue;
      const float4 other = sum[s + half];
      sum[s] = float4{sum[s].x + other.x, sum[s].y + other.y, sum[s].z + other.z, sum[s].w + other.w};
    }
  }
  return sum[0];
}

}  // namespace millrace::cuda
