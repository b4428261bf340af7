#pragma once

// Routing: the experts of each row, and the rows of each expert.

#include "cuda/batch.cuh"
#include "cuda/order_key.cuh"

namespace millrace::cuda {

constexpr int kRouteThreads = 1024;
constexpr int kRouteWarps = kRouteThreads / kLanes;
static_assert(kMaxExperts <= kRouteThreads);

/// The choices of a row among 32 consecutive experts.
struct ExpertMask {
  uint32_t bits = 0;    ///< one bit per expert, the lowest first
  uint32_t before = 0;  ///< choices among lower experts
};
/// The tiles of one expert's GEMMs, consecutive in the list.
struct alignas(16) ExpertTiles {
  int32_t expert = 0;
  int32_t first = 0;  ///< in the list
  int32_t count = 0;
  int32_t pairs = 0;
};

/// The lists of pairs. A pair is a row with one of its experts: row · per_row + the number of its lower experts. The
/// pairs of a row are thus consecutive, in the order in which they are added.
struct RouteLists {
  uint32_t* arrived = nullptr;    // [1] zero between calls
  int32_t* tile_count = nullptr;  // [1]
  ExpertMask* choices = nullptr;  // [experts / 32, row_stride]
  float* weights = nullptr;       // [pairs]
  int32_t* pairs = nullptr;       // [experts, row_stride] those of each expert, by row
  ExpertTiles* tiles = nullptr;   // [tiles] of each the expert's, by expert
};

struct RouteParams {
  const float* logits = nullptr;  // [rows, experts]
  DeviceExperts experts;
  DeviceBatch batch;
  int32_t first_row = 0;   ///< row 0 here is this row of the batch
  int32_t row_stride = 0;  ///< maximum of rows
  int32_t tile_tokens = 0;
  int32_t experts_per_warp = 0;  ///< a power of two
  RouteLists lists;
};

struct RouteShared {
  uint32_t turn;
  int32_t counts[kMaxExperts];     // pairs of each expert
  int32_t tile_sums[kRouteWarps];  // tiles of a warp's experts
};
__device__ inline RouteShared& route_shared() {
  return *reinterpret_cast<RouteShared*>(shared_memory());
}

/// The experts of one row, found by a warp: one bit per expert of this lane, which are lane, lane + 32, …. Keys order
/// like the logits; 0: no expert.
template <int kPerLane>
__device__ uint32_t select_topk_experts(const uint32_t (&keys)[kPerLane], int32_t per_row) {
  const uint32_t lane = threadIdx.x % kLanes;
  uint32_t chosen = 0;
  for (int32_t n = 0; n < per_row; ++n) {
    uint32_t best = 0;
    uint32_t at = kMaxExperts;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (keys[i] <= best || (chosen >> i & 1u) != 0) continue;  // of equal ones the lower stays
      best = keys[i];
      at = static_cast<uint32_t>(i * kLanes) + lane;
    }
    const uint32_t best_of_all = __reduce_max_sync(kAllLanes, best);
    const uint32_t next = __reduce_min_sync(kAllLanes, best == best_of_all ? at : kMaxExperts);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      chosen |= (next == static_cast<uint32_t>(i * kLanes) + lane ? 1u : 0u) << i;
    }
  }
  return chosen;
}

/// Returns the choice of the first experts, in the form of select_topk_experts().
template <int kPerLane>
__device__ uint32_t first_experts(int32_t per_row) {
  uint32_t chosen = 0;
  for (int i = 0; i < kPerLane; ++i) {
    chosen |= (i * kLanes + static_cast<int32_t>(threadIdx.x % kLanes) < per_row ? 1u : 0u) << i;
  }
  return chosen;
}

/// Lists a row's experts with their weights. weight(i) is that of this lane's expert i.
template <int kPerLane, class Weight>
__device__ void list_choices(const RouteParams& route, int32_t row, uint32_t chosen, const Weight& weight) {
  const auto lane = static_cast<int32_t>(threadIdx.x % kLanes);
  const DeviceExperts& experts = route.experts;
  uint32_t before = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (i * kLanes >= experts.count) break;
    const bool own = (chosen >> i & 1u) != 0;
    const uint32_t bits = __ballot_sync(kAllLanes, own);
    if (lane == 0) route.lists.choices[static_cast<size_t>(i) * route.row_stride + row] = {bits, before};
    if (own) {
      const uint32_t rank = before + static_cast<uint32_t>(__popc(bits & ((1u << lane) - 1u)));
      route.lists.weights[static_cast<size_t>(row) * experts.per_row + rank] = weight(i);
    }
    before += static_cast<uint32_t>(__popc(bits));
  }
}

/// Finds one row's experts and their weights by a plain softmax, with one warp. A row with a NaN goes to the first
/// experts with NaN weights, as do infinities.
template <int kPerLane>
__device__ void route_row(const RouteParams& route, int32_t row) {
  const auto lane = static_cast<int32_t>(threadIdx.x % kLanes);
  const DeviceExperts& experts = route.experts;
  const float* const from = route.logits + static_cast<size_t>(row) * experts.count;
  uint32_t keys[kPerLane];
  uint32_t top_key = 0;
  bool is_nan = false;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int32_t expert = i * kLanes + lane;
    const bool known = expert < experts.count;
    const float logit = known ? from[expert] : 0.0f;
    is_nan = is_nan || logit != logit;
    keys[i] = known ? order_key(logit) : 0;
    top_key = max(top_key, keys[i]);
  }
  is_nan = __ballot_sync(kAllLanes, is_nan) != 0;
  const float top = value_of_key(__reduce_max_sync(kAllLanes, top_key));
  const uint32_t chosen =
      is_nan ? first_experts<kPerLane>(experts.per_row) : select_topk_experts(keys, experts.per_row);
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const bool counts = experts.renormalize ? (chosen >> i & 1u) != 0 : i * kLanes + lane < experts.count;
    sum += counts ? expf(value_of_key(keys[i]) - top) : 0.0f;
  }
  sum = warp_sum(sum);
  list_choices<kPerLane>(route, row, chosen, [&](int i) {
    return is_nan ? __uint_as_float(0x7FC00000u) : expf(value_of_key(keys[i]) - top) / sum;
  });
}

/// Returns true in the last block to arrive, which then sees all blocks' writes.
__device__ inline bool is_last_block(uint32_t* arrived) {
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

/// Lists the pairs of each expert by row. A warp serves up to kPerWarp consecutive experts of one word of the choices.
template <int kPerWarp>
__device__ void group_pairs_by_expert(const RouteParams& route, int32_t rows) {
  constexpr int kAtOnce = 4;  // reads of choices
  const auto lane = static_cast<int32_t>(threadIdx.x % kLanes);
  const int32_t per_warp = route.experts_per_warp;
  const int32_t first = static_cast<int32_t>(threadIdx.x / kLanes) * per_warp;
  if (first >= route.experts.count) return;
  const ExpertMask* const choices = route.lists.choices + static_cast<size_t>(first / kLanes) * route.row_stride;
  int32_t counts[kPerWarp] = {};
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
      for (int i = 0; i < kPerWarp; ++i) {
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
  for (int i = 0; i < kPerWarp; ++i) {
    if (i < per_warp) route_shared().counts[first + i] = counts[i];
  }
}

/// Cuts the pairs of each expert of this device into tiles, with one thread per expert.
__device__ inline void list_tiles(const RouteParams& route) {
  RouteShared& shared = route_shared();
  const auto lane = static_cast<int32_t>(threadIdx.x % kLanes);
  const auto warp = static_cast<int32_t>(threadIdx.x / kLanes);
  const auto expert = static_cast<int32_t>(threadIdx.x);
  const bool is_there = expert >= route.experts.first() && expert < route.experts.end();
  const int32_t count = is_there ? shared.counts[expert] : 0;
  const int32_t tiles = ceil_div(count, route.tile_tokens);
  int32_t end = tiles;
  for (int distance = 1; distance < kLanes; distance *= 2) {
    const int32_t other = __shfl_up_sync(kAllLanes, end, distance);
    if (lane >= distance) end += other;
  }
  if (lane == kLanes - 1) shared.tile_sums[warp] = end;
  __syncthreads();
  for (int32_t i = 0; i < warp; ++i) end += shared.tile_sums[i];
  for (int32_t i = end - tiles; i < end; ++i)
    route.lists.tiles[i] = {.expert = expert, .first = end - tiles, .count = tiles, .pairs = count};
  if (threadIdx.x == kRouteThreads - 1) *route.lists.tile_count = end;
}

}  // namespace millrace::cuda
