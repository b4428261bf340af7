#pragma once

// Which experts each row goes to, and which rows each expert computes.

#include "cuda/batch.cuh"

namespace millrace::cuda {

constexpr int kRouteThreads = 1024;
constexpr int kRouteWarps = kRouteThreads / kLanes;
/// Experts of a row that each lane holds: lane, lane + 32, …
constexpr int kExpertsPerLane = kMostExperts / kLanes;
static_assert(kMostExperts <= kRouteThreads);

/// What a row chose of 32 experts that follow one another.
struct Choice {
  uint32_t bits = 0;    ///< an expert each, the lowest first
  uint32_t before = 0;  ///< how many the row chose of lower number
};
/// Pairs of one expert, as many as a tile of its products has tokens, or fewer.
struct alignas(16) ExpertTile {
  DeviceExpert expert;
  int32_t first = 0;  ///< in RouteLists::pairs
  int32_t count = 0;
};

/// A pair is a row and one of its experts: row · per_row + how many the row chose of lower number. So the pairs of a
/// row follow one another in the order in which they are added.
struct RouteLists {
  uint32_t* arrived = nullptr;    // [1] zero between calls
  int32_t* tile_count = nullptr;  // [1]
  Choice* choices = nullptr;      // [experts / 32, row_stride]
  float* weights = nullptr;       // [pairs]
  int32_t* pairs = nullptr;       // [experts, row_stride] those of each expert, by row
  ExpertTile* tiles = nullptr;    // by expert, then by row
};

struct Route {
  const float* logits = nullptr;  // [rows, experts]
  DeviceExperts experts;
  DeviceBatch batch;
  int32_t first_row = 0;  ///< of the batch, that is row 0 here
  int32_t row_stride = 0;  ///< the most rows
  int32_t tile_tokens = 0;
  int32_t experts_per_warp = 0;  ///< when rows are listed: a power of two
  RouteLists lists;
};

struct RouteShared {
  uint32_t turn;
  int32_t counts[kMostExperts];    // pairs of each expert
  int32_t tile_sums[kRouteWarps];  // tiles of a warp's experts
};
__device__ inline RouteShared& route_shared() {
  return *reinterpret_cast<RouteShared*>(shared_memory());
}

__device__ inline bool precedes(float logit, int32_t expert, float other_logit, int32_t other) {
  return logit > other_logit || (logit == other_logit && expert < other);
}

/// The experts of one row, which a warp finds: a bit per expert that this lane holds. No logit is NaN.
__device__ inline uint32_t choose_experts(const float (&logits)[kExpertsPerLane], int32_t experts, int32_t per_row) {
  const auto lane = static_cast<int32_t>(threadIdx.x % kLanes);
  uint32_t chosen = 0;
  for (int32_t n = 0; n < per_row; ++n) {
    float best = -__uint_as_float(0x7F800000u);
    int32_t at = kMostExperts;  // none, which every expert precedes
#pragma unroll
    for (int i = 0; i < kExpertsPerLane; ++i) {
      const int32_t expert = i * kLanes + lane;
      if (expert >= experts || (chosen >> i & 1u) != 0 || !precedes(logits[i], expert, best, at)) continue;
      best = logits[i];
      at = expert;
    }
    for (int bits = kLanes / 2; bits > 0; bits /= 2) {
      const float other = __shfl_xor_sync(kAllLanes, best, bits);
      const int32_t other_at = __shfl_xor_sync(kAllLanes, at, bits);
      if (!precedes(other, other_at, best, at)) continue;
      best = other;
      at = other_at;
    }
    if (at % kLanes == lane) chosen |= 1u << (at / kLanes);
  }
  return chosen;
}

/// Finds one row's experts and their weights, by one warp. A row with a NaN goes to the first experts, with weights that
/// are NaN, as infinities make them too.
__device__ inline void route_row(const Route& route, int32_t row) {
  const auto lane = static_cast<int32_t>(threadIdx.x % kLanes);
  const DeviceExperts& experts = route.experts;
  const float* const from = route.logits + static_cast<size_t>(row) * experts.count;
  const float infinity = __uint_as_float(0x7F800000u);
  float logits[kExpertsPerLane];
  float top = -infinity;
  bool has_nan = false;
#pragma unroll
  for (int i = 0; i < kExpertsPerLane; ++i) {
    const int32_t expert = i * kLanes + lane;
    logits[i] = expert < experts.count ? from[expert] : -infinity;
    has_nan = has_nan || logits[i] != logits[i];
    top = logits[i] > top ? logits[i] : top;
  }
  for (int bits = kLanes / 2; bits > 0; bits /= 2) {
    const float other = __shfl_xor_sync(kAllLanes, top, bits);
    top = other > top ? other : top;
  }
  has_nan = __ballot_sync(kAllLanes, has_nan) != 0;
  uint32_t chosen = 0;
  if (has_nan) {
    for (int i = 0; i < kExpertsPerLane; ++i) chosen |= (i * kLanes + lane < experts.per_row ? 1u : 0u) << i;
  } else {
    chosen = choose_experts(logits, experts.count, experts.per_row);
  }
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kExpertsPerLane; ++i) {
    const bool counts = experts.renormalised ? (chosen >> i & 1u) != 0 : i * kLanes + lane < experts.count;
    logits[i] = expf(logits[i] - top);
    sum += counts ? logits[i] : 0.0f;
  }
  sum = warp_sum(sum);
  uint32_t before = 0;
#pragma unroll
  for (int i = 0; i < kExpertsPerLane; ++i) {
    if (i * kLanes >= experts.count) break;
    const bool own = (chosen >> i & 1u) != 0;
    const uint32_t bits = __ballot_sync(kAllLanes, own);
    if (lane == 0) route.lists.choices[static_cast<size_t>(i) * route.row_stride + row] = {bits, before};
    if (own) {
      const uint32_t rank = before + static_cast<uint32_t>(__popc(bits & ((1u << lane) - 1u)));
      route.lists.weights[static_cast<size_t>(row) * experts.per_row + rank] =
          has_nan ? __uint_as_float(0x7FC00000u) : logits[i] / sum;
    }
    before += static_cast<uint32_t>(__popc(bits));
  }
}

/// True in the block that came last, which then sees what all of them wrote.
__device__ inline bool came_last(uint32_t* arrived) {
  RouteShared& shared = route_shared();
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) shared.turn = atomicAdd(arrived, 1u);
  __syncthreads();
  if (shared.turn != gridDim.x - 1) return false;
  __threadfence();
  if (threadIdx.x == 0) *arrived = 0;
  return true;
}

/// Lists the pairs of each expert by row; a warp has experts that follow one another, of one word of the choices.
__device__ inline void list_pairs(const Route& route, int32_t rows) {
  constexpr int kAtOnce = 4;  // reads of choices
  const auto lane = static_cast<int32_t>(threadIdx.x % kLanes);
  const int32_t per_warp = route.experts_per_warp;
  const int32_t first = static_cast<int32_t>(threadIdx.x / kLanes) * per_warp;
  if (first >= route.experts.count) return;
  const Choice* const choices = route.lists.choices + static_cast<size_t>(first / kLanes) * route.row_stride;
  int32_t counts[kExpertsPerLane] = {};
  for (int32_t base = 0; base < rows; base += kAtOnce * kLanes) {
    uint2 read[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int32_t row = base + j * kLanes + lane;
      read[j] = row < rows ? __ldcg(reinterpret_cast<const uint2*>(choices + row)) : uint2{};
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int32_t row = base + j * kLanes + lane;
#pragma unroll
      for (int i = 0; i < kExpertsPerLane; ++i) {
        if (i >= per_warp) break;
        const int32_t bit = first % kLanes + i;
        const bool own = (read[j].x >> bit & 1u) != 0;
        const uint32_t votes = __ballot_sync(kAllLanes, own);
        if (own) {
          const int32_t place = counts[i] + __popc(votes & ((1u << lane) - 1u));
          const int32_t rank = static_cast<int32_t>(read[j].y) + __popc(read[j].x & ((1u << bit) - 1u));
          route.lists.pairs[static_cast<size_t>(first + i) * route.row_stride + place] =
              row * route.experts.per_row + rank;
        }
        counts[i] += __popc(votes);
      }
    }
  }
  if (lane != 0) return;
#pragma unroll
  for (int i = 0; i < kExpertsPerLane; ++i) {
    if (i < per_warp) route_shared().counts[first + i] = counts[i];
  }
}

/// Cuts each expert's pairs into tiles; a thread per expert.
__device__ inline void list_tiles(const Route& route) {
  RouteShared& shared = route_shared();
  const auto lane = static_cast<int32_t>(threadIdx.x % kLanes);
  const auto warp = static_cast<int32_t>(threadIdx.x / kLanes);
  const auto expert = static_cast<int32_t>(threadIdx.x);
  const int32_t count = expert < route.experts.count ? shared.counts[expert] : 0;
  const int32_t tiles = ceil_div(count, route.tile_tokens);
  int32_t end = tiles;
  for (int distance = 1; distance < kLanes; distance *= 2) {
    const int32_t other = __shfl_up_sync(kAllLanes, end, distance);
    if (lane >= distance) end += other;
  }
  if (lane == kLanes - 1) shared.tile_sums[warp] = end;
  __syncthreads();
  for (int32_t i = 0; i < warp; ++i) end += shared.tile_sums[i];
  for (int32_t i = 0; i < tiles; ++i) {
    const int32_t begin = i * route.tile_tokens;
    route.lists.tiles[end - tiles + i] = {route.experts.table[expert], expert * route.row_stride + begin,
                                          min(route.tile_tokens, count - begin)};
  }
  if (threadIdx.x == kRouteThreads - 1) *route.lists.tile_count = end;
}

}  // namespace millrace::cuda
