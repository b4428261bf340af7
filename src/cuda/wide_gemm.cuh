#pragma once

// GEMM of packed weights and more than 32 rows on compute capability 9.0: one thread starts copies, two warpgroups
// multiply, and a cluster of two blocks shares the tokens. Sums have the order of gemm.cuh.

#include "cuda/bulk.cuh"
#include "cuda/gemm.cuh"

namespace millrace::cuda {

/// A tile of 128 features × kTokens tokens. Each warpgroup has the sums of 64 features in registers.
template <int kTokens, int kStages, int kBlocksPerSm>
struct WideTiling {
  static constexpr int kTokenCount = kTokens;
  static constexpr int kStageCount = kStages;
  static constexpr int kMinBlocks = kBlocksPerSm;
  static constexpr int kFeatures = kWidePanels * kPanelRows;
  static constexpr int kWarpgroups = kWidePanels;
  static constexpr int kConsumers = kWarpgroups * kWarpgroupThreads;
  static constexpr int kThreads = kConsumers + kWarpgroupThreads;
  /// Registers per thread, of which the copying warpgroup gives most to the others.
  static constexpr int kConsumerRegisters = kBlocksPerSm > 1 ? 96 : 224;
  static constexpr int kCopierRegisters = kBlocksPerSm > 1 ? 48 : 56;
  static constexpr int kColumnTiles = kTokens / 8;
  /// Says whether registers have room for the sums of earlier splits.
  static constexpr bool kCanReduceSplits = kTokens <= 192;
  static constexpr int kWeightBytes = kWidePanels * kPanelStepBytes;
  static constexpr int kTokenBytes = kTokens * kStepRowBytes;
  static constexpr int kStageBytes = kWeightBytes + kTokenBytes;
  /// Tokens whose sums pass through shared memory at once, per warpgroup.
  static constexpr int kStagedTokens = kBlocksPerSm > 1 ? 16 : 32;
  static constexpr int kSumStride = kPanelRows + 4;  // floats; spreads tokens over the banks
  static constexpr int kStagingBytes = kStagedTokens * kSumStride * 4;
  static constexpr int kBarriersAt = kStages * kStageBytes + kWarpgroups * kStagingBytes;
  static constexpr int kTurnsAt = kBarriersAt + 2 * kStages * static_cast<int>(sizeof(CopyBarrier));
  static constexpr int kSharedBytes = kTurnsAt + 16;
  static_assert(kSharedBytes <= static_cast<int>(kHopperSharedBytes) && kTokens / kClusterBlocks % 8 == 0);
};
using WideTokens64 = WideTiling<64, 4, 2>;
using WideTokens128 = WideTiling<128, 6, 1>;
using WideTokens192 = WideTiling<192, 5, 1>;
using WideTokens256 = WideTiling<256, 4, 1>;

/// The tiles of a product, computed by clusters in turn. A pair is two tiles of adjacent features.
struct WideGrid {
  int32_t token_tiles = 0;
  int32_t feature_pairs = 0;
  bool divides = false;  ///< whether the splits of a tile go to different blocks
};

/// One turn of a block.
struct WideTurn {
  int32_t token_tile = 0;
  int32_t feature_tile = 0;
  int32_t first_split = 0;
  int32_t last_split = 0;  ///< exclusive
  __device__ WideTurn(const GemmParams& p, const WideGrid& grid, int32_t turn) {
    token_tile = turn % grid.token_tiles;
    const int32_t rest = turn / grid.token_tiles;
    feature_tile = rest % grid.feature_pairs * kClusterBlocks + static_cast<int32_t>(cluster_rank());
    first_split = grid.divides ? rest / grid.feature_pairs : 0;
    last_split = grid.divides ? first_split + 1 : p.splits;
  }
  __device__ static int32_t first(const WideGrid&) { return static_cast<int32_t>(blockIdx.x) / kClusterBlocks; }
  __device__ static int32_t stride() { return static_cast<int32_t>(gridDim.x) / kClusterBlocks; }
  __device__ static int32_t end(const GemmParams& p, const WideGrid& grid) {
    return grid.token_tiles * grid.feature_pairs * (grid.divides ? p.splits : 1);
  }
};

/// The stages of a block, in the order in which both sides walk over them.
template <class T>
class WideStages {
 public:
  __device__ WideStages() : base_(uniform(shared_address(shared_memory()))) {}
  /// Prepares the barriers, by one thread.
  __device__ void init() const {
    constexpr uint32_t kReaders = kClusterBlocks * T::kConsumers / kLanes;
    for (uint32_t s = 0; s < T::kStageCount; ++s) {
      init_barrier(full(s), 1);
      init_barrier(empty(s), kReaders);
    }
    publish_barriers();
  }
  __device__ uint32_t data() const { return base_ + stage_ * T::kStageBytes; }
  __device__ uint32_t full() const { return full(stage_); }
  __device__ void wait_full() const { wait_barrier(full(stage_), parity_); }
  /// Waits until no warp of the cluster reads the stage's earlier contents.
  __device__ void wait_empty() const { wait_barrier(empty(stage_), parity_ ^ 1); }
  /// Signals both blocks of the cluster that this warp has read the stage before.
  __device__ void release_previous() const {
    const uint32_t lane = threadIdx.x % kLanes;
    if (lane < kClusterBlocks) arrive_at(empty(stage_ > 0 ? stage_ - 1 : T::kStageCount - 1), lane);
  }
  __device__ void advance() {
    stage_ = stage_ + 1 < T::kStageCount ? stage_ + 1 : 0;
    if (stage_ == 0) parity_ ^= 1;
  }

 private:
  __device__ uint32_t full(uint32_t stage) const { return base_ + T::kBarriersAt + stage * sizeof(CopyBarrier); }
  __device__ uint32_t empty(uint32_t stage) const { return full(T::kStageCount + stage); }

  const uint32_t base_;
  uint32_t stage_ = 0;
  uint32_t parity_ = 0;
};

/// The weights of one turn of a block.
class WideWeights {
 public:
  __device__ WideWeights(const GemmParams& p, const WideTurn& turn, int32_t steps)
      : panel_bytes_(static_cast<size_t>(steps) * kPanelStepBytes),
        panels_(max(0, min(kWidePanels, p.panels - turn.feature_tile * kWidePanels))),
        from_(p.weight + turn.feature_tile * kWidePanels * panel_bytes_) {}
  __device__ uint32_t step_bytes() const { return static_cast<uint32_t>(panels_ * kPanelStepBytes); }
  __device__ void copy(int32_t step, uint32_t stage, uint32_t barrier) const {
    for (int32_t i = 0; i < panels_; ++i) {
      const std::byte* const from = from_ + i * panel_bytes_ + static_cast<size_t>(step) * kPanelStepBytes;
      copy_bulk(stage + static_cast<uint32_t>(i) * kPanelStepBytes, from, kPanelStepBytes, barrier);
    }
  }

 private:
  const size_t panel_bytes_;
  const int32_t panels_;
  const std::byte* const from_;
};

/// Starts the copies of all turns of this block, with one thread. Each block of the cluster copies its weights, and its
/// share of the tokens to both.
template <class T>
__device__ void copy_operands(const GemmParams& p, const RowTiles& x, const WideGrid& grid, WideStages<T> stages) {
  constexpr uint32_t kShare = T::kTokenCount / kClusterBlocks;
  const int32_t steps = ceil_div(p.inputs, kStepInputs);
  const uint32_t rank = cluster_rank();
  for (int32_t t = WideTurn::first(grid); t < WideTurn::end(p, grid); t += WideTurn::stride()) {
    const WideTurn turn(p, grid, t);
    const WideWeights weights(p, turn, steps);
    const int32_t last = first_step(p, turn.last_split, steps);
    for (int32_t step = first_step(p, turn.first_split, steps); step < last; ++step) {
      stages.wait_empty();
      arrive_and_expect(stages.full(), weights.step_bytes() + T::kTokenBytes);
      weights.copy(step, stages.data(), stages.full());
      copy_rows_to_cluster(stages.data() + T::kWeightBytes + rank * kShare * kStepRowBytes, x, step * kStepInputs,
                           turn.token_tile * T::kTokenCount + static_cast<int32_t>(rank * kShare), stages.full());
      stages.advance();
    }
  }
}

template <class T>
using WideSums = float[T::kColumnTiles][4];

/// Starts the products of one step.
template <class T>
__device__ void begin_wide_step(uint32_t stage, uint32_t panel, WideSums<T>& sums) {
  const uint64_t features = swizzled_operand(stage + panel);
  const uint64_t tokens = swizzled_operand(stage + T::kWeightBytes);
  wgmma_fence();
#pragma unroll
  for (int inputs = 0; inputs < kStepInputs; inputs += 16) {
    wgmma<T::kTokenCount>(sums, features + (inputs * 2 >> 4), tokens + (inputs * 2 >> 4));
  }
  wgmma_commit();
}

/// Adds the products of `steps` steps to the sums, which are complete on return. One step is always under way while
/// the next is begun.
template <class T>
__device__ void multiply_steps(int32_t steps, uint32_t panel, WideStages<T>& stages, WideSums<T>& sums) {
  stages.wait_full();
  begin_wide_step<T>(stages.data(), panel, sums);
  stages.advance();
  for (int32_t i = 1; i < steps; ++i) {
    stages.wait_full();
    begin_wide_step<T>(stages.data(), panel, sums);
    wgmma_wait<1>();
    stages.release_previous();
    stages.advance();
  }
  wgmma_wait<0>();
  stages.release_previous();
}

/// Stores this warpgroup's sums as one split of a tile. Returns true in the last to arrive, whose sums are then those
/// over all splits, added in their order or in a tree.
template <class T, bool kTree>
__device__ bool reduce_wide_splits(const GemmParams& p, int32_t tile_index, int32_t tiles, int32_t split,
                                   WideSums<T>& sums) {
  const auto thread = static_cast<int32_t>(threadIdx.x % kWarpgroupThreads);
  const auto warpgroup = static_cast<int32_t>(threadIdx.x / kWarpgroupThreads);
  const auto partial = [&](int32_t s) {
    const size_t at = (static_cast<size_t>(s) * tiles + tile_index) * T::kWarpgroups + warpgroup;
    return reinterpret_cast<float4*>(p.partials) + at * T::kColumnTiles * kWarpgroupThreads + thread;
  };
  float4* const own = partial(split);
#pragma unroll
  for (int j = 0; j < T::kColumnTiles; ++j) {
    own[j * kWarpgroupThreads] = float4{sums[j][0], sums[j][1], sums[j][2], sums[j][3]};
  }
  __threadfence();
  warpgroup_barrier();
  uint32_t* const turn = reinterpret_cast<uint32_t*>(shared_memory() + T::kTurnsAt) + warpgroup;
  uint32_t* const arrived = p.arrived + tile_index * T::kWarpgroups + warpgroup;
  if (thread == 0) *turn = atomicAdd(arrived, 1u);
  warpgroup_barrier();
  if (*turn != static_cast<uint32_t>(p.splits - 1)) return false;
  __threadfence();
  if (thread == 0) *arrived = 0;
#pragma unroll
  for (int j = 0; j < T::kColumnTiles; ++j) {
    float4 total;
    if constexpr (kTree) {
      total = add_partials(p.splits, [&](int32_t s) { return partial(s) + j * kWarpgroupThreads; });
    } else {
      total = __ldcg(partial(0) + j * kWarpgroupThreads);
      for (int32_t s = 1; s < p.splits; ++s) {
        const float4 next = __ldcg(partial(s) + j * kWarpgroupThreads);
        total = float4{total.x + next.x, total.y + next.y, total.z + next.z, total.w + next.w};
      }
    }
    sums[j][0] = total.x;
    sums[j][1] = total.y;
    sums[j][2] = total.z;
    sums[j][3] = total.w;
  }
  return true;
}

/// Applies the epilogue to this warpgroup's panel of a tile, a few tokens at a time.
template <class T>
__device__ void store_wide_tile(const GemmParams& p, int32_t first_token, int32_t panel, const WideSums<T>& sums) {
  const auto thread = static_cast<int>(threadIdx.x % kWarpgroupThreads);
  const int lane = thread % kLanes;
  const int warp = thread / kLanes;
  const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroupThreads;
  auto* const staged =
      reinterpret_cast<float*>(shared_memory() + T::kStageCount * T::kStageBytes + warpgroup * T::kStagingBytes);
  if (panel >= p.panels) return;
  const int quads = quads_of_panel(p);
#pragma unroll
  for (int first = 0; first < T::kTokenCount; first += T::kStagedTokens) {
    if (first_token + first >= p.rows) break;
    warpgroup_barrier();
#pragma unroll
    for (int j = 0; j < T::kStagedTokens / 8; ++j) {
      float* const to = staged + (j * 8 + lane % 4 * 2) * T::kSumStride + warp * 16 + lane / 4;
#pragma unroll
      for (int i = 0; i < 4; ++i) to[i % 2 * T::kSumStride + i / 2 * 8] = sums[first / 8 + j][i];
    }
    warpgroup_barrier();
    for (int i = thread; i < T::kStagedTokens * quads; i += kWarpgroupThreads) {
      const int32_t row = first_token + first + i / quads;
      if (row < p.rows)
        store_quad(p, staged + i / quads * T::kSumStride, i % quads, (p.first_panel + panel) * kPanelRows, row);
    }
  }
}

template <class T>
__device__ void add_wide_sums(const WideSums<T>& earlier, WideSums<T>& sums) {
#pragma unroll
  for (int j = 0; j < T::kColumnTiles; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[j][i] += earlier[j][i];
  }
}

/// Computes the sums over the shards of a turn, which are a subtree. Sums that wait for their other half are in local
/// memory, since registers have no room for them.
template <class T>
__device__ void multiply_shards(const GemmParams& p, const WideTurn& turn, uint32_t panel, WideStages<T>& stages,
                                WideSums<T>& sums) {
  WideSums<T> waiting[kWaitingSums];
  int depth = 0;
#pragma unroll 1
  for (int32_t shard = turn.first_split; shard < turn.last_split; ++shard) {
#pragma unroll
    for (int j = 0; j < T::kColumnTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[j][i] = 0.0f;
    }
    const int32_t steps = p.shards.begin[shard + 1] - p.shards.begin[shard];
    if (steps > 0) multiply_steps<T>(steps, panel, stages, sums);
#pragma unroll 1
    for (int32_t completed = shard - turn.first_split; (completed & 1) != 0; completed >>= 1) {
      add_wide_sums<T>(waiting[--depth], sums);
    }
    if (shard + 1 == turn.last_split) break;
    WideSums<T>& kept = waiting[depth++];
#pragma unroll
    for (int j = 0; j < T::kColumnTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) kept[j][i] = sums[j][i];
    }
  }
}

/// Computes all turns of this block with one warpgroup.
template <class T, bool kTree>
__device__ void multiply_tiles(const GemmParams& p, const WideGrid& grid, WideStages<T> stages) {
  const int32_t steps = ceil_div(p.inputs, kStepInputs);
  const uint32_t warpgroup = uniform(threadIdx.x / kWarpgroupThreads);
  const uint32_t panel = warpgroup * kPanelStepBytes;
  for (int32_t t = WideTurn::first(grid); t < WideTurn::end(p, grid); t += WideTurn::stride()) {
    const WideTurn turn(p, grid, t);
    WideSums<T> sums = {};
    if constexpr (kTree) {
      multiply_shards<T>(p, turn, panel, stages, sums);
    } else if constexpr (!T::kCanReduceSplits) {
      multiply_steps<T>(steps, panel, stages, sums);
    } else {
      for (int32_t split = turn.first_split; split < turn.last_split; ++split) {
        WideSums<T> next = {};
        const int32_t own_steps = split_begin(split + 1, p.splits, steps) - split_begin(split, p.splits, steps);
        multiply_steps<T>(own_steps, panel, stages, next);
#pragma unroll
        for (int j = 0; j < T::kColumnTiles; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) sums[j][i] = split == turn.first_split ? next[j][i] : sums[j][i] + next[j][i];
        }
      }
    }
    if constexpr (kTree || T::kCanReduceSplits) {
      const int32_t tiles = grid.token_tiles * grid.feature_pairs * kClusterBlocks;
      const int32_t tile_index = turn.feature_tile * grid.token_tiles + turn.token_tile;
      if (grid.divides && !reduce_wide_splits<T, kTree>(p, tile_index, tiles, turn.first_split, sums)) continue;
    }
    store_wide_tile<T>(p, turn.token_tile * T::kTokenCount,
                       turn.feature_tile * kWidePanels + static_cast<int32_t>(warpgroup), sums);
  }
}

/// Grid: clusters of two blocks, which take the pairs of tiles in turn. The first thread of a block's last warpgroup
/// copies.
template <class T, bool kTree>
__global__ void __launch_bounds__(T::kThreads, T::kMinBlocks)
    wide_gemm_kernel(GemmParams p, const __grid_constant__ RowTiles x, WideGrid grid) {
  const WideStages<T> stages;
  if (threadIdx.x == 0) stages.init();
  cluster_sync();
  if (threadIdx.x < T::kConsumers) {
    take_registers<T::kConsumerRegisters>();
    multiply_tiles<T, kTree>(p, grid, stages);
  } else {
    give_registers<T::kCopierRegisters>();
    if (threadIdx.x == T::kConsumers) copy_operands<T>(p, x, grid, stages);
  }
  cluster_sync();  // the other block may still write to this one
}

}  // namespace millrace::cuda
