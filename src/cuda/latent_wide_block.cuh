#pragma once

// One block's share of latent attention by wgmma: up to 64 pairs of row and head against blocks of 64 latents. Latents
// are the rows of both products, so that few pairs cost little: scores are latents · queries, and results are
// transposed latents · probabilities. A pair is a column, whose sums do not depend on the number of columns.

#include "cuda/bulk.cuh"
#include "cuda/latent_block.cuh"
#include "cuda/wgmma.cuh"

namespace millrace::cuda {
namespace {

constexpr int kWideKeys = kWarpgroupRows;  ///< keys of a block, whose softmax is computed at once
constexpr int kWideSplitKeys = 2 * kSplitKeys;
constexpr int kWideGroups =
    2;  ///< warpgroups: each has half of the pairs of a product and half of the channels of a sum
constexpr int kWideThreads = kWideGroups * kWarpgroupThreads;
constexpr int kGroupWarps = kWarpgroupThreads / kLanes;
constexpr int kWarpKeys = kWideKeys * kLanes / kWideThreads;  ///< keys that a warp copies
static_assert(kWideSplitKeys % kWideKeys == 0);

/// The shared-memory layout for latents of up to kValuePanels · 64 values with keys of up to kKeyPanels · 64; further
/// values are zeros. A panel has 64 channels of all rows, with the 128-byte swizzle. Stages of codes: LatentTile.
template <int kValuePanels, int kKeyPanels, int kPairCount, bool kHasCodes>
struct WideLatentTile {
  static constexpr bool kByWarpgroup = true;
  static constexpr bool kCoded = kHasCodes;
  static constexpr int kPairs = kPairCount;
  static constexpr int kLatent = kValuePanels * kStepInputs;
  static constexpr int32_t kTileSplitKeys = kWideSplitKeys;
  static constexpr size_t kTotalBytes = sizeof(float) * kPairs * kLatent;
  static constexpr int kPanels = kKeyPanels;
  static constexpr int kChunks = kKeyPanels * 8;                   ///< 16-byte chunks per key
  static constexpr int kGroupPairs = kPairs / kWideGroups;         ///< whose scores a warpgroup computes
  static constexpr int kOwnTiles = kGroupPairs / 8;                ///< of eight of these pairs
  static constexpr int kGroupPanels = kValuePanels / kWideGroups;  ///< whose sums a warpgroup has
  static constexpr int kPairTiles = kPairs / 8;
  static constexpr int kKeyPanelBytes = kWideKeys * kStepRowBytes;
  static constexpr int kStageBytes = kKeyPanels * kKeyPanelBytes;
  static constexpr int32_t kMaxTokenBytes = kStageBytes / kWideKeys;  ///< of codes
  static constexpr int kQueryPanelBytes = kPairs * kStepRowBytes;
  static constexpr int kQueriesAt = 2 * kStageBytes;
  static constexpr int kProbabilitiesAt = kQueriesAt + kKeyPanels * kQueryPanelBytes;  ///< [pair][key]
  static constexpr int kExchangeAt = kProbabilitiesAt + kPairs * kStepRowBytes;  ///< floats [warp of a group][pair]
  static constexpr int kFactorsAt = kExchangeAt + kGroupWarps * kPairs * 4;      ///< floats [2][pair]
  static constexpr int kTotalsAt = kFactorsAt + 2 * kPairs * 4;                  ///< floats [2][pair]
  static constexpr size_t kSharedBytes = kTotalsAt + 2 * kPairs * 4;
  static_assert(kSharedBytes <= kHopperSharedBytes && kGroupPairs % 8 == 0 && kValuePanels % kWideGroups == 0);
  static_assert(kWarpKeys * kChunks % kLanes == 0);

  __device__ static std::byte* stage(int number) { return shared_memory() + number * kStageBytes; }
  __device__ static std::byte* queries() { return shared_memory() + kQueriesAt; }
  __device__ static std::byte* probabilities() { return shared_memory() + kProbabilitiesAt; }
  __device__ static float* exchange(int warp) {
    return reinterpret_cast<float*>(shared_memory() + kExchangeAt) + warp * kPairs;
  }
  __device__ static float* factors(int number) {
    return reinterpret_cast<float*>(shared_memory() + kFactorsAt) + number * kPairs;
  }
  /// Returns the maxima and the sums [pair] over a block's earlier splits.
  __device__ static float* total_max() { return reinterpret_cast<float*>(shared_memory() + kTotalsAt); }
  __device__ static float* total_sum() { return total_max() + kPairs; }
};

/// This thread among those of its block. Its pairs are the columns of mma's layout.
struct WideThread {
  int lane = static_cast<int>(threadIdx.x % kLanes);
  int warp = static_cast<int>(threadIdx.x / kLanes % kGroupWarps);  ///< of the warpgroup
  int group = static_cast<int>(threadIdx.x / kWarpgroupThreads);
  /// Returns the first of two adjacent pairs of the block that column tile `tile` of its warpgroup's scores has here.
  template <class Tile>
  [[nodiscard]] __device__ int own_pair(int tile) const {
    return group * Tile::kGroupPairs + tile * 8 + lane % 4 * 2;
  }
  /// Returns whether this thread does what is done once for each of its own pairs.
  [[nodiscard]] __device__ bool leads() const { return warp == 0 && lane < 4; }
};

/// A thread's state: maxima in units of log2 and its own part of the sums, of the pairs whose scores it computes, and
/// the unnormalised output [panel][pairs] of its channels.
template <class Tile>
struct WideState {
  float max[Tile::kOwnTiles][2];
  float sum[Tile::kOwnTiles][2];
  float acc[Tile::kGroupPanels][Tile::kPairTiles][4];

  __device__ WideState() { reset(); }
  __device__ void reset() {
#pragma unroll
    for (int tile = 0; tile < Tile::kOwnTiles; ++tile) {
      max[tile][0] = max[tile][1] = kInitialMax;
      sum[tile][0] = sum[tile][1] = 0.0f;
    }
    for_acc([](float& value, int, int, int) { value = 0.0f; });
  }
  /// Calls use(value, panel of the warpgroup, pair tile, index) for the output.
  template <class Use>
  __device__ void for_acc(const Use& use) {
#pragma unroll
    for (int panel = 0; panel < Tile::kGroupPanels; ++panel) {
#pragma unroll
      for (int tile = 0; tile < Tile::kPairTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) use(acc[panel][tile][i], panel, tile, i);
      }
    }
  }
};

/// Calls use(own tile, which of its two pairs) for the pairs whose scores a thread computes.
template <class Tile, class Use>
__device__ void for_own_pairs(const Use& use) {
#pragma unroll
  for (int tile = 0; tile < Tile::kOwnTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 2; ++i) use(tile, i);
  }
}

/// Returns the offset of the key that this lane names to its warp, of the block of keys from `first` on.
__device__ inline size_t wide_key_offset(const KvSource& source, const int32_t* chosen, int32_t first) {
  const int warp = threadIdx.x / kLanes;
  return latent_offset(source, chosen, first + warp * kWarpKeys + static_cast<int>(threadIdx.x % kWarpKeys));
}

/// Starts the copies of a block of latents with their keys. Missing ones become zeros.
template <class Tile>
__device__ void load_wide_latents(const KvSource& source, size_t own_offset, std::byte* stage) {
  const int warp = threadIdx.x / kLanes;
  if constexpr (Tile::kCoded) {
    load_coded_latents<kWarpKeys>(source.cache, own_offset, 0, own_codes(source, stage, warp, kWarpKeys));
  } else {
    const auto* const data = static_cast<const std::byte*>(source.cache.data);
    const int32_t stride = channel_stride(source.cache.head_dim);
    for (int i = threadIdx.x % kLanes; i < kWarpKeys * Tile::kChunks; i += kLanes) {
      const int key = i / Tile::kChunks;
      const int chunk = i % Tile::kChunks;
      const size_t offset = __shfl_sync(kAllLanes, own_offset, key);
      const bool known = offset != kNoKey && chunk * 8 < stride;
      std::byte* const to = stage + chunk / 8 * Tile::kKeyPanelBytes + chunk_offset(warp * kWarpKeys + key, chunk % 8);
      copy_async(to, data + (known ? offset + chunk * 16 : 0), known ? 16 : 0);
    }
  }
}

/// Brings a block of codes to bf16; contract: dequantize_block.
template <class Tile>
__device__ void dequantize_wide_block(const KvSource& source, std::byte* codes, std::byte* block) {
  const int warp = threadIdx.x / kLanes;
  dequantize_latents<kWarpKeys, Tile::kLatent / 8, Tile::kChunks>(
      source.cache, own_codes(source, codes, warp, kWarpKeys), [&](int key, int chunk) {
        return block + chunk / 8 * Tile::kKeyPanelBytes + chunk_offset(warp * kWarpKeys + key, chunk % 8);
      });
}

/// Computes the scores [key][pair] of a block of keys and this warpgroup's pairs.
template <class Tile>
__device__ void score_wide_block(const std::byte* stage, int group, float (&scores)[Tile::kOwnTiles][4]) {
  const uint32_t keys = shared_address(stage);
  const uint32_t queries = shared_address(Tile::queries()) + group * Tile::kGroupPairs * kStepRowBytes;
  wgmma_fence();
#pragma unroll
  for (int panel = 0; panel < Tile::kPanels; ++panel) {
    const uint64_t key = swizzled_operand(keys + panel * Tile::kKeyPanelBytes);
    const uint64_t query = swizzled_operand(queries + panel * Tile::kQueryPanelBytes);
#pragma unroll
    for (int inputs = 0; inputs < kStepInputs; inputs += 16)
      wgmma<Tile::kGroupPairs>(scores, key + (inputs * 2 >> 4), query + (inputs * 2 >> 4));
  }
  wgmma_commit();
  wgmma_wait<0>();
  order_after_wait(scores);
}

/// Replaces scores by probabilities relative to the new maxima, which it stores for both warpgroups with the factors of
/// the earlier sums. Invisible keys weigh exactly zero: a block without visible keys changes no bit of a pair's state.
template <class Tile>
__device__ void wide_softmax_block(const WideThread& me, float (&scores)[Tile::kOwnTiles][4],
                                   const int32_t (&last_visible)[Tile::kOwnTiles][2], int32_t first_key,
                                   float scale_log2, WideState<Tile>& state) {
  const int own_key = me.warp * 16 + me.lane / 4;
  const auto visible = [&](int tile, int i, int half) {
    return first_key + own_key + half * 8 <= last_visible[tile][i];
  };
  for_own_pairs<Tile>([&](int tile, int i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float& score = scores[tile][half * 2 + i];
      score = visible(tile, i, half) ? score * scale_log2 : kInitialMax;
    }
    float best = fmaxf(scores[tile][i], scores[tile][2 + i]);
#pragma unroll
    for (int bits = 4; bits < kLanes; bits *= 2) best = fmaxf(best, __shfl_xor_sync(kAllLanes, best, bits));
    if (me.lane < 4) Tile::exchange(me.warp)[me.own_pair<Tile>(tile) + i] = best;
  });
  warpgroup_barrier();
  for_own_pairs<Tile>([&](int tile, int i) {
    const int pair = me.own_pair<Tile>(tile) + i;
    float best = state.max[tile][i];
#pragma unroll
    for (int warp = 0; warp < kGroupWarps; ++warp) best = fmaxf(best, Tile::exchange(warp)[pair]);
    const float factor = exp2_fast(state.max[tile][i] - best);
    float sum = 0.0f;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float p = visible(tile, i, half) ? exp2_fast(scores[tile][half * 2 + i] - best) : 0.0f;
      const int key = own_key + half * 8;
      std::byte* const to = Tile::probabilities() + chunk_offset(pair, key / 8) + key % 8 * 2;
      *reinterpret_cast<uint16_t*>(to) = float_to_bf16(p);
      sum += p;
    }
    state.sum[tile][i] = state.sum[tile][i] * factor + sum;
    state.max[tile][i] = best;
    if (me.leads()) Tile::factors(0)[pair] = factor;
  });
}

/// Multiplies the output by the factors of its pairs. A factor of 1 changes no bit, so the work can be left out where
/// all agree.
template <class Tile>
__device__ void scale_wide_acc(const WideThread& me, WideState<Tile>& state) {
  float factor[Tile::kPairTiles][2];
  bool changes = false;
#pragma unroll
  for (int tile = 0; tile < Tile::kPairTiles; ++tile) {
    const auto two = *reinterpret_cast<const float2*>(Tile::factors(0) + tile * 8 + me.lane % 4 * 2);
    factor[tile][0] = two.x;
    factor[tile][1] = two.y;
    changes |= two.x != 1.0f || two.y != 1.0f;
  }
  if (__ballot_sync(kAllLanes, changes) == 0) return;
  state.for_acc([&](float& value, int, int tile, int i) { value *= factor[tile][i % 2]; });
}

/// acc += transposed latents · probabilities, for the channels of this warpgroup.
template <class Tile>
__device__ void add_wide_latents(const WideThread& me, const std::byte* stage, WideState<Tile>& state) {
  const uint64_t probabilities = swizzled_operand(shared_address(Tile::probabilities()));
  const int key = me.lane / 16 * 8 + me.lane % 8;
  const int chunk = me.warp * 2 + me.lane / 8 % 2;
#pragma unroll
  for (int panel = 0; panel < Tile::kGroupPanels; ++panel) {
    const std::byte* const from = stage + (me.group * Tile::kGroupPanels + panel) * Tile::kKeyPanelBytes;
    uint32_t values[kWideKeys / 16][4];
#pragma unroll
    for (int step = 0; step < kWideKeys / 16; ++step)
      load_matrix_transposed(values[step], from + chunk_offset(step * 16 + key, chunk));
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kWideKeys / 16; ++step)
      wgmma_registers<Tile::kPairs>(state.acc[panel], values[step], probabilities + (step * 32 >> 4));
    wgmma_commit();
    wgmma_wait<1>();  // registers have room for the values of two panels
  }
  wgmma_wait<0>();
#pragma unroll
  for (int panel = 0; panel < Tile::kGroupPanels; ++panel) order_after_wait(state.acc[panel]);
}

/// Walks over the latents [begin, end) of a sequence; `begin` is a multiple of kWideSplitKeys. Calls end_split(first
/// key after it) at the end of each split. A barrier precedes the call: no thread reads the shared memory any more.
template <class Tile, class EndSplit>
__device__ void walk_wide_latents(const LatentParams& a, const LatentRows& rows, int32_t begin, int32_t end,
                                  WideState<Tile>& state, const EndSplit& end_split) {
  const WideThread me;
  const KvSource source{.cache = a.cache,
                        .pages = a.batch.pages + a.batch.page_begin[rows.sequence],
                        .layer = a.layer,
                        .head = 0,
                        .limit = rows.prefix + rows.total / a.head_count};
  int32_t last_visible[Tile::kOwnTiles][2];
  for_own_pairs<Tile>(
      [&](int tile, int i) { last_visible[tile][i] = rows.position(a, rows.first + me.own_pair<Tile>(tile) + i); });
  const auto start = [&](int32_t key, size_t offset) {
    const int stage = Tile::kCoded ? 1 : (key - begin) / kWideKeys % 2;
    if (key < end) load_wide_latents<Tile>(source, offset, Tile::stage(stage));
    commit_copies();
  };
  start(begin, wide_key_offset(source, rows.chosen, begin));
  if constexpr (!Tile::kCoded) start(begin + kWideKeys, wide_key_offset(source, rows.chosen, begin + kWideKeys));
  load_queries<Tile, Tile::kPairs, kWideThreads>(a, rows, [](int own, int chunk) {
    return Tile::queries() + chunk / 8 * Tile::kQueryPanelBytes + chunk_offset(own, chunk % 8);
  });
  for (int32_t key = begin; key < end; key += kWideKeys) {
    const std::byte* const stage = Tile::stage(Tile::kCoded ? 0 : (key - begin) / kWideKeys % 2);
    const int32_t later = key + (Tile::kCoded ? 1 : 2) * kWideKeys;
    const size_t later_offset = wide_key_offset(source, rows.chosen, later);
    wait_copies<Tile::kCoded ? 0 : 1>();
    if constexpr (Tile::kCoded) {
      dequantize_wide_block<Tile>(source, Tile::stage(1), Tile::stage(0));
      start(later, later_offset);
    }
    fence_async_proxy();
    __syncthreads();
    float scores[Tile::kOwnTiles][4] = {};
    score_wide_block<Tile>(stage, me.group, scores);
    wide_softmax_block<Tile>(me, scores, last_visible, key, a.scale_log2, state);
    fence_async_proxy();
    __syncthreads();
    scale_wide_acc<Tile>(me, state);
    add_wide_latents<Tile>(me, stage, state);
    __syncthreads();  // no warp reads the stage, the probabilities or the factors any more
    if constexpr (!Tile::kCoded) start(later, later_offset);
    const int32_t next = key + kWideKeys;
    if (next % kWideSplitKeys == 0 || next >= end) end_split(next);
  }
}

/// Adds up the parts of the sums at the end of a split, in one order. Each thread then has the whole sums of its pairs.
/// All threads of the block call it.
template <class Tile>
__device__ void reduce_wide_sums(const WideThread& me, WideState<Tile>& state) {
  for_own_pairs<Tile>([&](int tile, int i) {
    float sum = state.sum[tile][i];
#pragma unroll
    for (int bits = 4; bits < kLanes; bits *= 2) sum += __shfl_xor_sync(kAllLanes, sum, bits);
    if (me.lane < 4) Tile::exchange(me.warp)[me.own_pair<Tile>(tile) + i] = sum;
  });
  warpgroup_barrier();
  for_own_pairs<Tile>([&](int tile, int i) {
    float sum = 0.0f;
#pragma unroll
    for (int warp = 0; warp < kGroupWarps; ++warp) sum += Tile::exchange(warp)[me.own_pair<Tile>(tile) + i];
    state.sum[tile][i] = sum;
  });
}

}  // namespace
}  // namespace millrace::cuda
