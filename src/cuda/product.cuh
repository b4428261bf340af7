#pragma once

// Packed weights times rows on tensor cores: features are the tile's rows, tokens its columns.

#include "cuda/mma.cuh"
#include "cuda/packed_weight.h"

namespace millrace::cuda {

enum class Epilogue : int32_t { kStoreF32, kStoreBf16, kAddF32, kSiluMul };

struct Product {
  const uint16_t* x = nullptr;        // [rows, inputs]
  const std::byte* weight = nullptr;  // packed
  const float* bias = nullptr;        // [features] or null
  void* out = nullptr;                // [rows, features]
  float* partials = nullptr;          // [split][tile][tokens of a tile][features of a tile]
  uint32_t* arrived = nullptr;        // [tile] zeros between products
  int32_t rows = 0;
  int32_t inputs = 0;
  int32_t features = 0;
  int32_t panels = 0;
  int32_t splits = 1;
  Epilogue epilogue = Epilogue::kStoreF32;
};

/// The rows of a tile, token by token, where they follow one another.
struct RowRange {
  int32_t first = 0;
  int32_t end = 0;
  __device__ bool has(int token) const { return first + token < end; }
  /// The row of x that a token is, and that of out.
  __device__ int32_t source(int token) const { return first + token; }
  __device__ int32_t target(int token) const { return first + token; }
};

/// A tile of kPanels · 64 features × kTokens tokens by kWarpsM × kWarpsN warps, with kStages steps on their way. The
/// order of additions into one sum is the same for all tiles: 16 inputs at a time, from the first of the split.
template <int kPanels, int kTokens, int kWarpsM, int kWarpsN, int kStages, int kBlocksPerSm>
struct Tiling {
  static constexpr int kFeatures = kPanels * kPanelRows;
  static constexpr int kTokenCount = kTokens;
  static constexpr int kPanelCount = kPanels;
  static constexpr int kStageCount = kStages;
  static constexpr int kThreads = kWarpsM * kWarpsN * kLanes;
  static constexpr int kMinBlocks = kBlocksPerSm;
  static constexpr int kWarpsAlongTokens = kWarpsN;
  static constexpr int kRowTiles = kFeatures / 16 / kWarpsM;  // per warp
  static constexpr int kColumnTiles = kTokens / 8 / kWarpsN;  // per warp
  static constexpr int kWeightBytes = kPanels * kPanelStepBytes;
  static constexpr int kTokenBytes = kStepInputs * 2;  // of one token in one step
  static constexpr int kStageBytes = kWeightBytes + kTokens * kTokenBytes;
  static constexpr int kSumStride = kFeatures + 4;  // floats; spreads tokens over the banks
  static constexpr int kSumBytes = kTokens * kSumStride * 4;
  static constexpr int kSharedBytes = kStages * kStageBytes > kSumBytes ? kStages* kStageBytes : kSumBytes;
  static_assert(kRowTiles >= 1 && kColumnTiles >= 1);
};

/// Few tokens: what bounds it is reading the weight. Many: the tensor cores.
using Tokens8 = Tiling<1, 8, 4, 1, 6, 4>;
using Tokens16 = Tiling<1, 16, 4, 1, 5, 4>;
using Tokens32 = Tiling<1, 32, 4, 1, 4, 4>;
using Tokens64 = Tiling<2, 64, 4, 2, 3, 2>;
using Tokens128 = Tiling<2, 128, 4, 2, 3, 1>;

/// Tokens of the tiles that `rows` rows of one weight are best cut into; results do not depend on it.
constexpr int32_t tile_tokens(int32_t rows) {
  return rows <= 8 ? 8 : rows <= 16 ? 16 : rows <= 32 ? 32 : rows <= 64 ? 64 : 128;
}
/// Calls use(tiling) with the tiling of so many tokens.
template <class Use>
void with_tiling(int32_t tokens, const Use& use) {
  switch (tokens) {
    case 8: return use(Tokens8{});
    case 16: return use(Tokens16{});
    case 32: return use(Tokens32{});
    case 64: return use(Tokens64{});
    default: return use(Tokens128{});
  }
}

/// Sums of one warp: as mma leaves them.
template <class T>
using Sums = float[T::kRowTiles][T::kColumnTiles][4];

/// Where 16 bytes of a token's inputs lie in a stage: the order turns with the token, so that eight tokens' loads of
/// one chunk meet different banks.
__device__ inline int token_chunk_offset(int token, int chunk) {
  return token * kStepInputs * 2 + ((chunk ^ (token & 7)) << 4);
}

/// Asks for one step of the weight's panels and of the tokens. Inputs beyond the last are zeros, as are panels and
/// tokens beyond theirs.
template <class T, class Rows>
__device__ void load_step(const Product& p, const Rows& rows, int32_t first_panel, int32_t step, std::byte* stage) {
  constexpr int kChunks = kPanelStepBytes / 16;
  const size_t steps = static_cast<size_t>(ceil_div(p.inputs, kStepInputs));
  for (int i = threadIdx.x; i < T::kPanelCount * kChunks; i += T::kThreads) {
    const int32_t panel = first_panel + i / kChunks;
    const bool known = panel < p.panels;
    const size_t at = known ? (panel * steps + step) * kPanelStepBytes + i % kChunks * 16 : 0;
    copy_async(stage + i * 16, p.weight + at, known ? 16 : 0);
  }
  std::byte* const tokens = stage + T::kWeightBytes;
  const bool aligned = p.inputs % 8 == 0;
  for (int i = threadIdx.x; i < T::kTokenCount * 8; i += T::kThreads) {
    const int32_t row = rows.source(i / 8);
    const int32_t input = step * kStepInputs + i % 8 * 8;
    const int32_t known = rows.has(i / 8) && input < p.inputs ? min(8, p.inputs - input) : 0;
    const uint16_t* from = p.x + (known > 0 ? static_cast<size_t>(row) * p.inputs + input : 0);
    std::byte* const to = tokens + token_chunk_offset(i / 8, i % 8);
    if (aligned) {
      copy_async(to, from, known * 2);
    } else {
      for (int j = 0; j < 8; ++j) reinterpret_cast<uint16_t*>(to)[j] = j < known ? from[j] : uint16_t{0};
    }
  }
}

template <class T>
__device__ void multiply_step(const std::byte* stage, int warp_m, int warp_n, int lane, Sums<T>& sums) {
  const std::byte* const tokens = stage + T::kWeightBytes;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t b[T::kColumnTiles][4];
#pragma unroll
    for (int n = 0; n < T::kColumnTiles; ++n) {
      const int token = (warp_n * T::kColumnTiles + n) * 8 + lane % 8;
      load_matrix(b[n], tokens + token_chunk_offset(token, half * 4 + lane / 8));
    }
#pragma unroll
    for (int quarter = 0; quarter < 2; ++quarter) {
#pragma unroll
      for (int m = 0; m < T::kRowTiles; ++m) {
        const int tile = (warp_m * T::kRowTiles + m) * (kStepInputs / 16) + half * 2 + quarter;
        const uint4 words = *reinterpret_cast<const uint4*>(stage + (tile * kLanes + lane) * 16);
        const uint32_t a[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (int n = 0; n < T::kColumnTiles; ++n) {
          const uint32_t pair[2] = {b[n][quarter * 2], b[n][quarter * 2 + 1]};
          mma(sums[m][n], a, pair);
        }
      }
    }
  }
}

/// Walks the steps [begin, end) with kStages - 1 of them under way; calls done(step) after each.
template <class T, class Rows, class Done>
__device__ void walk_steps(const Product& p, const Rows& rows, int32_t first_panel, int32_t begin, int32_t end,
                           Sums<T>& sums, const Done& done) {
  std::byte* const stages = shared_memory();
  const int lane = threadIdx.x % kLanes;
  const int warp = threadIdx.x / kLanes;
#pragma unroll
  for (int s = 0; s < T::kStageCount - 1; ++s) {
    if (begin + s < end) load_step<T>(p, rows, first_panel, begin + s, stages + s * T::kStageBytes);
    commit_copies();
  }
  for (int32_t step = begin; step < end; ++step) {
    wait_copies<T::kStageCount - 2>();
    __syncthreads();
    const int32_t next = step + T::kStageCount - 1;
    if (next < end) {
      load_step<T>(p, rows, first_panel, next, stages + (next - begin) % T::kStageCount * T::kStageBytes);
    }
    commit_copies();
    multiply_step<T>(stages + (step - begin) % T::kStageCount * T::kStageBytes, warp / T::kWarpsAlongTokens,
                     warp % T::kWarpsAlongTokens, lane, sums);
    done(step);
  }
  wait_copies<0>();
  __syncthreads();
}

/// Lays a warp's sums into tile [token][feature], in shared memory.
template <class T>
__device__ void spread_sums(const Sums<T>& sums, float* tile) {
  const int lane = threadIdx.x % kLanes;
  const int warp_m = threadIdx.x / kLanes / T::kWarpsAlongTokens;
  const int warp_n = threadIdx.x / kLanes % T::kWarpsAlongTokens;
#pragma unroll
  for (int m = 0; m < T::kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < T::kColumnTiles; ++n) {
      const int feature = (warp_m * T::kRowTiles + m) * 16 + lane / 4;
      const int token = (warp_n * T::kColumnTiles + n) * 8 + lane % 4 * 2;
#pragma unroll
      for (int i = 0; i < 4; ++i) tile[(token + i % 2) * T::kSumStride + feature + i / 2 * 8] = sums[m][n][i];
    }
  }
}

/// Hands this split's tile over; true in the block that came last, whose tile then holds the sum over the splits.
template <class T>
__device__ bool join_splits(const Product& p, int32_t tile_index, int32_t tiles, int32_t split, float* tile) {
  constexpr int kSums = T::kTokenCount * T::kFeatures;
  const auto address = [&](int i) { return tile + i / T::kFeatures * T::kSumStride + i % T::kFeatures; };
  const auto partial = [&](int32_t s) { return p.partials + (static_cast<size_t>(s) * tiles + tile_index) * kSums; };
  for (int i = threadIdx.x * 4; i < kSums; i += T::kThreads * 4) {
    *reinterpret_cast<float4*>(partial(split) + i) = *reinterpret_cast<const float4*>(address(i));
  }
  __threadfence();
  __syncthreads();
  auto* const turn = reinterpret_cast<uint32_t*>(shared_memory() + T::kSumBytes);
  if (threadIdx.x == 0) *turn = atomicAdd(p.arrived + tile_index, 1u);
  __syncthreads();
  if (*turn != static_cast<uint32_t>(p.splits - 1)) return false;
  __threadfence();
  if (threadIdx.x == 0) p.arrived[tile_index] = 0;
  for (int i = threadIdx.x * 4; i < kSums; i += T::kThreads * 4) {
    float4 total = __ldcg(reinterpret_cast<const float4*>(partial(0) + i));
    for (int32_t s = 1; s < p.splits; ++s) {
      const float4 next = __ldcg(reinterpret_cast<const float4*>(partial(s) + i));
      total = float4{total.x + next.x, total.y + next.y, total.z + next.z, total.w + next.w};
    }
    *reinterpret_cast<float4*>(address(i)) = total;
  }
  __syncthreads();
  return true;
}

__device__ inline float silu(float gate) {
  return gate / (expf(-gate) + 1.0f);
}

/// Stores up to four neighbouring features of a row.
__device__ inline void store_features(const Product& p, const float (&sums)[4], int32_t row, int32_t feature) {
  const int32_t count = min(4, p.features - feature);
  const size_t at = static_cast<size_t>(row) * p.features + feature;
  const bool whole = p.features % 4 == 0;
  float values[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) values[i] = i < count && p.bias != nullptr ? sums[i] + p.bias[feature + i] : sums[i];
  if (p.epilogue == Epilogue::kStoreBf16 || p.epilogue == Epilogue::kSiluMul) {
    auto* out = static_cast<uint16_t*>(p.out) + at;
    if (whole) {
      *reinterpret_cast<uint2*>(out) = uint2{pack_bf16(values[0], values[1]), pack_bf16(values[2], values[3])};
      return;
    }
    for (int i = 0; i < count; ++i) out[i] = float_to_bf16(values[i]);
    return;
  }
  auto* out = static_cast<float*>(p.out) + at;
  const bool adds = p.epilogue == Epilogue::kAddF32;
  if (whole) {
    const float4 old = adds ? *reinterpret_cast<const float4*>(out) : float4{};
    *reinterpret_cast<float4*>(out) =
        adds ? float4{old.x + values[0], old.y + values[1], old.z + values[2], old.w + values[3]}
             : float4{values[0], values[1], values[2], values[3]};
    return;
  }
  for (int i = 0; i < count; ++i) out[i] = adds ? out[i] + values[i] : values[i];
}

template <class T, class Rows>
__device__ void finish_tile(const Product& p, const Rows& rows, int32_t first_feature, const float* tile) {
  const bool gated = p.epilogue == Epilogue::kSiluMul;
  const int tile_features = gated ? T::kFeatures / 2 : T::kFeatures;
  const int quads = tile_features / 4;
  for (int i = threadIdx.x; i < T::kTokenCount * quads; i += T::kThreads) {
    const int token = i / quads;
    const int feature = i % quads * 4;
    const int32_t out_feature = (gated ? first_feature / 2 : first_feature) + feature;
    if (!rows.has(token) || out_feature >= p.features) continue;
    const float* from = tile + token * T::kSumStride + (gated ? feature / 8 * 16 + feature % 8 : feature);
    float sums[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) sums[j] = gated ? silu(from[j]) * from[8 + j] : from[j];
    store_features(p, sums, rows.target(token), out_feature);
  }
}

/// Lays a tile's sums into shared memory: those of one split, or, `alone`, of all of them, added in their order as they
/// are done.
template <class T, class Rows>
__device__ void sum_tile(const Product& p, const Rows& rows, int32_t first_panel, int32_t split, bool alone,
                         float* tile) {
  const int32_t steps = ceil_div(p.inputs, kStepInputs);
  const int32_t begin = split_begin(split, p.splits, steps);
  const int32_t end = alone ? steps : split_begin(split + 1, p.splits, steps);
  Sums<T> sums = {};
  Sums<T> totals = {};
  int32_t fold_at = alone && p.splits > 1 ? split_begin(1, p.splits, steps) : end + 1;
  walk_steps<T>(p, rows, first_panel, begin, end, sums, [&](int32_t step) {
    if (step + 1 != fold_at) return;
#pragma unroll
    for (int m = 0; m < T::kRowTiles; ++m) {
#pragma unroll
      for (int n = 0; n < T::kColumnTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          totals[m][n][i] = split == 0 ? sums[m][n][i] : totals[m][n][i] + sums[m][n][i];
          sums[m][n][i] = fold_at == end ? totals[m][n][i] : 0.0f;
        }
      }
    }
    ++split;
    fold_at = fold_at == end ? end + 1 : split_begin(split + 1, p.splits, steps);
  });
  spread_sums<T>(sums, tile);
  __syncthreads();
}

/// Grid: [token tiles, feature tiles, splits or 1]. With one block for all splits, their sums are added as they are
/// done; the other way the last block of a tile adds them. Both add in the order of the splits.
template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kMinBlocks) product_kernel(Product p) {
  const RowRange rows{static_cast<int32_t>(blockIdx.x) * T::kTokenCount, p.rows};
  const int32_t first_panel = static_cast<int32_t>(blockIdx.y) * T::kPanelCount;
  const auto split = static_cast<int32_t>(blockIdx.z);
  const bool alone = gridDim.z == 1;
  auto* const tile = reinterpret_cast<float*>(shared_memory());
  sum_tile<T>(p, rows, first_panel, split, alone, tile);
  const auto tile_index = static_cast<int32_t>(blockIdx.y * gridDim.x + blockIdx.x);
  if (!alone && !join_splits<T>(p, tile_index, static_cast<int32_t>(gridDim.x * gridDim.y), split, tile)) return;
  finish_tile<T>(p, rows, first_panel * kPanelRows, tile);
}

}  // namespace millrace::cuda
