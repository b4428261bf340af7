#pragma once

// Launches of GEMMs: by tiles, and for many rows.

#include "cuda/wide_gemm.cuh"

namespace millrace::cuda {

inline int32_t multiprocessor_count() {
#if defined(MILLRACE_EMULATED_CUDA)
  return 4;
#else
  int device = 0;
  int count = 0;
  check_launch("product", "cudaGetDevice", cudaGetDevice(&device));
  check_launch("product", "cudaDeviceGetAttribute",
               cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
#endif
}

/// Rows up to which the splits of a sum may go to different blocks. It bounds the workspace.
constexpr int32_t kMaxSplitRows = 256;
/// Counters of blocks that have arrived, of which a product uses one or two per tile.
constexpr int32_t kCounters = 512;
constexpr size_t kCounterBytes = kCounters * sizeof(uint32_t);

/// Returns the scratch bytes of products of up to `rows` rows whose sums have `splits` parts.
inline size_t split_workspace_bytes(int32_t splits, int32_t panels, int32_t rows) {
  constexpr int32_t kPanelsOfCluster = kWidePanels * kClusterBlocks;
  if (splits <= 1 || rows <= 0) return kCounterBytes;
  const int32_t most = rows < kMaxSplitRows ? rows : kMaxSplitRows;
  const int32_t tokens = most > 32 ? 128 : tile_tokens(most);
  return kCounterBytes + static_cast<size_t>(splits) * static_cast<size_t>(round_up(most, tokens)) *
                             static_cast<size_t>(round_up(panels, kPanelsOfCluster)) * kPanelRows * sizeof(float);
}

/// Launches a kernel whose blocks have a tile each, or one of the parts of its sums where there are few tiles.
template <auto kKernel, class T>
void launch_tiles(const char* name, cudaStream_t stream, const GemmParams& product) {
  const int32_t token_tiles = ceil_div(product.rows, T::kTokenCount);
  const int32_t feature_tiles = ceil_div(product.panels, T::kPanelCount);
  const bool divides = product.splits > 1 && product.rows <= kMaxSplitRows && token_tiles * feature_tiles <= kCounters;
  // The word after the tile of sums tells a block's threads whether they are the last block.
  constexpr size_t kShared = T::kSharedBytes > T::kSumBytes + 16 ? T::kSharedBytes : T::kSumBytes + 16;
  static_assert(kShared <= T::kMaxSharedBytes);
  launch<kKernel>({.name = name,
                   .grid = dim3(token_tiles, feature_tiles, divides ? product.splits : 1),
                   .block = dim3(T::kThreads),
                   .shared_bytes = kShared},
                  stream, product);
}

/// A way to divide a product into tiles.
struct WidePlan {
  int32_t tokens = 0;
  WideGrid grid;
  int64_t time = INT64_MAX;
};

/// Returns the plan that takes the least time by a simple model. Results do not depend on it.
inline WidePlan plan_wide(const GemmParams& product, int32_t multiprocessors) {
  constexpr int32_t kFixedTokens = 32;  // the time of a step that does not depend on its tokens
  const int32_t steps = step_count(product.inputs);
  const int32_t pairs = ceil_div(product.panels, kWidePanels * kClusterBlocks);
  WidePlan best;
  for (const int32_t tokens : {64, 128, 192, 256}) {
    const int32_t tiles = ceil_div(product.rows, tokens);
    for (const bool divides : {false, true}) {
      if (tokens == 256 && product.splits > 1 && product.shards.count == 0) continue;
      // Scratch has room for tiles of up to 128 tokens.
      if (divides && (product.splits == 1 || product.rows > kMaxSplitRows || tokens > 128)) continue;
      if (divides && tiles * pairs * kClusterBlocks * kWidePanels > kCounters) continue;
      const int32_t block_steps = divides ? ceil_div(steps, product.splits) : steps;
      const int64_t blocks = int64_t{tiles} * pairs * kClusterBlocks * (divides ? product.splits : 1);
      const int64_t time = steps_in_waves(blocks, block_steps, multiprocessors) * (tokens + kFixedTokens);
      if (time < best.time) {
        best = {
            .tokens = tokens, .grid = {.token_tiles = tiles, .feature_pairs = pairs, .divides = divides}, .time = time};
      }
    }
  }
  return best;
}

template <class T, bool kTree>
void launch_wide(cudaStream_t stream, const GemmParams& product, const WideGrid& grid, int32_t multiprocessors) {
  const int64_t turns = int64_t{grid.token_tiles} * grid.feature_pairs * (grid.divides ? product.splits : 1);
  const int64_t clusters = multiprocessors * T::kMinBlocks / kClusterBlocks;
  const auto blocks = static_cast<uint32_t>((turns < clusters ? turns : clusters) * kClusterBlocks);
  launch<wide_gemm_kernel<T, kTree>>(
      {.name = "product",
       .grid = dim3(blocks),
       .block = dim3(T::kThreads),
       .shared_bytes = T::kSharedBytes,
       .cluster_blocks = kClusterBlocks},
      stream, product,
      make_row_tiles(product.x, product.rows, product.inputs, kStepInputs, T::kTokenCount / kClusterBlocks), grid);
}

/// Multiplies many rows; with `kTree` a weight that has shards.
template <bool kTree>
void run_wide(cudaStream_t stream, const GemmParams& product) {
  const int32_t multiprocessors = multiprocessor_count();
  const WidePlan plan = plan_wide(product, multiprocessors);
  switch (plan.tokens) {
    case 64: return launch_wide<WideTokens64, kTree>(stream, product, plan.grid, multiprocessors);
    case 128: return launch_wide<WideTokens128, kTree>(stream, product, plan.grid, multiprocessors);
    case 192: return launch_wide<WideTokens192, kTree>(stream, product, plan.grid, multiprocessors);
    default: return launch_wide<WideTokens256, kTree>(stream, product, plan.grid, multiprocessors);
  }
}

/// Returns whether run_wide() computes a GEMM.
inline bool takes_wide(const GemmParams& product, MatrixInstruction by) {
  constexpr int32_t kFewRows = 32;
  constexpr int32_t kRowAlignment = 8;  // inputs, for the copy engine
  return by == MatrixInstruction::kWgmma && product.rows > kFewRows && product.inputs % kRowAlignment == 0;
}

}  // namespace millrace::cuda
