#pragma once

// GEMM of weights and inputs in E4M3 on compute capability 9.0. The products of 128 inputs are summed by wgmma, whose
// sums have few bits; scaled, they are added to sums in f32. Blocks, clusters and epilogues are those of wide_gemm.cuh,
// for which two codes are one element of 16 bits.

#include "cuda/wide_launch.cuh"

namespace millrace::cuda {

/// A tile of 128 features × kTokens tokens. A stage has the codes of both, then the scales of features and tokens.
template <int kTokens, int kStages>
struct Fp8Tiling {
  static constexpr int kTokenCount = kTokens;
  static constexpr int kStageCount = kStages;
  static constexpr int kMinBlocks = 1;
  static constexpr int kFeatures = kWidePanels * kPanelRows;
  static constexpr int kWarpgroups = kWidePanels;
  static constexpr int kConsumers = kWarpgroups * kWarpgroupThreads;
  static constexpr int kThreads = kConsumers + kWarpgroupThreads;
  static constexpr int kConsumerRegisters = 224;
  static constexpr int kCopierRegisters = 56;
  static constexpr int kColumnTiles = kTokens / 8;
  static constexpr int kWeightBytes = kWidePanels * kPanelStepBytes;
  static constexpr int kTokenBytes = kTokens * kStepRowBytes;
  static constexpr int kPanelScaleBytes = kPanelRows * static_cast<int>(sizeof(float));
  static constexpr int kScalesAt = kWeightBytes + kTokenBytes;
  static constexpr int kTokenScalesAt = kScalesAt + kWidePanels * kPanelScaleBytes;
  static constexpr int kTokenScaleBytes = kTokens * static_cast<int>(sizeof(float));
  static constexpr int kStageBytes = kScalesAt + kSwizzleBytes;
  static constexpr int kStagedTokens = kTokens < 32 ? kTokens : 32;
  static constexpr int kSumStride = kPanelRows + 4;  // floats; spreads tokens over the banks
  static constexpr int kStagingBytes = kStagedTokens * kSumStride * 4;
  static constexpr int kBarriersAt = kStages * kStageBytes + kWarpgroups * kStagingBytes;
  static constexpr int kTurnsAt = kBarriersAt + 2 * kStages * static_cast<int>(sizeof(CopyBarrier));
  static constexpr int kSharedBytes = kTurnsAt + 16;
  static_assert(kSharedBytes <= static_cast<int>(kHopperSharedBytes) && kTokens / kClusterBlocks % 8 == 0);
  static_assert(kTokenScalesAt + kTokenScaleBytes <= kStageBytes && kStageBytes % kSwizzleBytes == 0);
};
using Fp8Tokens16 = Fp8Tiling<16, 10>;
using Fp8Tokens64 = Fp8Tiling<64, 8>;
using Fp8Tokens128 = Fp8Tiling<128, 6>;

/// The rows of a product in E4M3.
struct Fp8Rows {
  const float* scales = nullptr;  // [step][padded_rows]
  int32_t padded_rows = 0;        ///< a multiple of all tiles' tokens
};

/// Starts the copies of all turns of this block, with one thread.
template <class T>
__device__ void copy_fp8_operands(const GemmParams& p, const RowTiles& x, const Fp8Rows& rows, const WideGrid& grid,
                                  WideStages<T> stages) {
  constexpr uint32_t kShare = T::kTokenCount / kClusterBlocks;
  constexpr auto kPanelBytes = static_cast<uint32_t>(kPanelStepBytes + T::kPanelScaleBytes);
  const int32_t steps = ceil_div(p.inputs, kStepInputs);
  const uint32_t rank = cluster_rank();
  for (int32_t t = WideTurn::first(grid); t < WideTurn::end(p, grid); t += WideTurn::stride()) {
    const WideTurn turn(p, grid, t);
    const int32_t first_panel = turn.feature_tile * kWidePanels;
    const auto panels = static_cast<uint32_t>(max(0, min(kWidePanels, p.panels - first_panel)));
    const int32_t first_token = turn.token_tile * T::kTokenCount;
    const int32_t last = first_step(p, turn.last_split, steps);
    for (int32_t step = first_step(p, turn.first_split, steps); step < last; ++step) {
      stages.wait_empty();
      arrive_and_expect(stages.full(), panels * kPanelBytes + T::kTokenBytes + T::kTokenScaleBytes);
      for (uint32_t i = 0; i < panels; ++i) {
        const std::byte* const from =
            p.weight + (static_cast<size_t>(first_panel + static_cast<int32_t>(i)) * steps + step) * kPanelBytes;
        copy_bulk(stages.data() + i * kPanelStepBytes, from, kPanelStepBytes, stages.full());
        copy_bulk(stages.data() + T::kScalesAt + i * T::kPanelScaleBytes, from + kPanelStepBytes, T::kPanelScaleBytes,
                  stages.full());
      }
      copy_bulk(stages.data() + T::kTokenScalesAt,
                rows.scales + static_cast<size_t>(step) * rows.padded_rows + first_token, T::kTokenScaleBytes,
                stages.full());
      copy_rows_to_cluster(stages.data() + T::kWeightBytes + rank * kShare * kStepRowBytes, x, step * kStepInputs,
                           first_token + static_cast<int32_t>(rank * kShare), stages.full());
      stages.advance();
    }
  }
}

/// Adds the scaled products of one step to the sums.
template <class T>
__device__ void add_fp8_step(uint32_t stage, uint32_t warpgroup, WideSums<T>& sums) {
  WideSums<T> products;
  const uint64_t features = swizzled_operand(stage + warpgroup * kPanelStepBytes);
  const uint64_t tokens = swizzled_operand(stage + T::kWeightBytes);
  wgmma_fence();
#pragma unroll
  for (int bytes = 0; bytes < kStepRowBytes; bytes += 32) {
    wgmma_e4m3<T::kTokenCount>(products, features + (bytes >> 4), tokens + (bytes >> 4), bytes > 0);
  }
  wgmma_commit();
  const std::byte* const scales = shared_memory() + (stage - shared_address(shared_memory()));
  const int lane = static_cast<int>(threadIdx.x % kLanes);
  const int row = static_cast<int>(threadIdx.x % kWarpgroupThreads) / kLanes * 16 + lane / 4;
  const auto* const of_row =
      reinterpret_cast<const float*>(scales + T::kScalesAt) + static_cast<int>(warpgroup) * kPanelRows + row;
  const float of_features[2] = {of_row[0], of_row[8]};
  const auto* const of_tokens = reinterpret_cast<const float2*>(scales + T::kTokenScalesAt) + lane % 4;
  wgmma_wait<0>();
#pragma unroll
  for (int j = 0; j < T::kColumnTiles; ++j) {
    const float2 of_pair = of_tokens[j * 4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float scale = of_features[i / 2] * (i % 2 == 0 ? of_pair.x : of_pair.y);
      sums[j][i] = __fmaf_rn(products[j][i], scale, sums[j][i]);
    }
  }
}

/// Adds the products of `steps` steps to the sums.
template <class T>
__device__ void multiply_fp8_steps(int32_t steps, uint32_t warpgroup, WideStages<T>& stages, WideSums<T>& sums) {
  for (int32_t i = 0; i < steps; ++i) {
    stages.wait_full();
    add_fp8_step<T>(stages.data(), warpgroup, sums);
    __syncwarp();
    stages.advance();
    stages.release_previous();
  }
}

/// Computes all turns of this block with one warpgroup. Splits are added in order, with `kTree` in the tree of shards.
template <class T, bool kTree>
__device__ void multiply_fp8_tiles(const GemmParams& p, const WideGrid& grid, WideStages<T> stages) {
  const int32_t steps = ceil_div(p.inputs, kStepInputs);
  const uint32_t warpgroup = uniform(threadIdx.x / kWarpgroupThreads);
  for (int32_t t = WideTurn::first(grid); t < WideTurn::end(p, grid); t += WideTurn::stride()) {
    const WideTurn turn(p, grid, t);
    WideSums<T> sums = {};
    WideSums<T> waiting[kTree ? kWaitingSums : 1];
    int depth = 0;
#pragma unroll 1
    for (int32_t split = turn.first_split; split < turn.last_split; ++split) {
      WideSums<T> next = {};
      multiply_fp8_steps<T>(first_step(p, split + 1, steps) - first_step(p, split, steps), warpgroup, stages, next);
      if constexpr (kTree) {
#pragma unroll 1
        for (int32_t completed = split - turn.first_split; (completed & 1) != 0; completed >>= 1) {
          add_wide_sums<T>(waiting[--depth], next);
        }
        const bool is_last = split + 1 == turn.last_split;
        WideSums<T>& kept = is_last ? sums : waiting[depth];
        if (!is_last) ++depth;
#pragma unroll
        for (int j = 0; j < T::kColumnTiles; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) kept[j][i] = next[j][i];
        }
      } else {
#pragma unroll
        for (int j = 0; j < T::kColumnTiles; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) sums[j][i] = split == turn.first_split ? next[j][i] : sums[j][i] + next[j][i];
        }
      }
    }
    const int32_t tiles = grid.token_tiles * grid.feature_pairs * kClusterBlocks;
    const int32_t tile_index = turn.feature_tile * grid.token_tiles + turn.token_tile;
    if (grid.divides && !reduce_wide_splits<T, kTree>(p, tile_index, tiles, turn.first_split, sums)) continue;
    store_wide_tile<T>(p, turn.token_tile * T::kTokenCount,
                       turn.feature_tile * kWidePanels + static_cast<int32_t>(warpgroup), sums);
  }
}

/// Grid: clusters of two blocks, which take the pairs of tiles in turn. The first thread of a block's last warpgroup
/// copies.
template <class T, bool kTree>
__global__ void __launch_bounds__(T::kThreads, T::kMinBlocks)
    fp8_gemm_kernel(GemmParams p, const __grid_constant__ RowTiles x, Fp8Rows rows, WideGrid grid) {
  const WideStages<T> stages;
  if (threadIdx.x == 0) stages.init();
  cluster_sync();
  if (threadIdx.x < T::kConsumers) {
    take_registers<T::kConsumerRegisters>();
    multiply_fp8_tiles<T, kTree>(p, grid, stages);
  } else {
    give_registers<T::kCopierRegisters>();
    if (threadIdx.x == T::kConsumers) copy_fp8_operands<T>(p, x, rows, grid, stages);
  }
  cluster_sync();  // the other block may still write to this one
}

/// Computes a GEMM, with shards or without, with a weight in WeightCodes::kE4M3Both. The workspace is that of
/// fp8_workspace_bytes().
void run_fp8(cudaStream_t stream, const GemmParams& product, const DeviceWeight& weight, void* workspace);

}  // namespace millrace::cuda
