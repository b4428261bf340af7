#pragma once

// GEMM of packed weights and rows on tensor cores: features are the tile's rows, tokens its columns.

#include "cuda/activation.cuh"
#include "cuda/mma.cuh"
#include "cuda/packed_weight.h"
#include "cuda/shard_tree.cuh"
#include "cuda/wgmma.cuh"

namespace millrace::cuda {

enum class Epilogue : int32_t { kStoreF32, kStoreBf16, kAddF32, kSiluMul };

struct GemmParams {
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
  ShardSteps shards = {};  ///< the splits of a sum with shards
  WeightFormat format = {};
  int32_t first_panel = 0;   ///< of the matrix, where `weight` and `panels` are a part of it
  int32_t first_column = 0;  ///< of out and bias, for the first feature
  int32_t columns = 0;       ///< of out; 0: features
};

/// Returns the first step of a split; for `splits` it is the end.
__device__ inline int32_t first_step(const GemmParams& p, int32_t split, int32_t steps) {
  return p.shards.count > 0 ? p.shards.begin[split] : split_begin(split, p.splits, steps);
}

/// The rows of a tile when they are consecutive.
struct RowRange {
  int32_t first = 0;
  int32_t end = 0;
  __device__ bool has(int token) const { return first + token < end; }
  /// Returns the row of x and of out for a token.
  __device__ int32_t source(int token) const { return first + token; }
  __device__ int32_t target(int token) const { return first + token; }
};

/// A tile of kPanels · 64 features × kTokens tokens for kWarpsM × kWarpsN warps, with kStages steps in shared memory.
/// All tiles of one instruction add into a sum in the same order: 16 inputs at a time, from the split's first.
template <MatrixInstruction kBy, int kPanels, int kTokens, int kWarpsM, int kWarpsN, int kStages, int kBlocksPerSm>
struct Tiling {
  static constexpr bool kByWarpgroup = kBy == MatrixInstruction::kWgmma;
  static constexpr bool kDequantizes = false;
  static constexpr int kFeatures = kPanels * kPanelRows;
  static constexpr int kTokenCount = kTokens;
  static constexpr int kPanelCount = kPanels;
  static constexpr int kStageCount = kStages;
  /// Steps in flight in addition to the one being computed. wgmma still reads the step before that.
  static constexpr int kStagesInFlight = kByWarpgroup ? kStages - 2 : kStages - 1;
  static constexpr int kThreads = kWarpsM * kWarpsN * kLanes;
  static constexpr int kMinBlocks = kBlocksPerSm;
  static constexpr int kWarpsAlongTokens = kWarpsN;
  static constexpr int kRowTiles = kFeatures / 16 / kWarpsM;  // per warp
  static constexpr int kColumnTiles = kTokens / 8 / kWarpsN;  // per warp
  static constexpr int kWeightBytes = kPanels * kPanelStepBytes;
  static constexpr int kStageBytes = kWeightBytes + kTokens * kStepRowBytes;
  static constexpr int kSumStride = kFeatures + 4;  // floats; spreads tokens over the banks
  static constexpr int kSumBytes = kTokens * kSumStride * 4;
  static constexpr int kSharedBytes = kStages * kStageBytes > kSumBytes ? kStages* kStageBytes : kSumBytes;
  /// Maximum of shared memory per block on devices with the instruction.
  static constexpr size_t kMaxSharedBytes = kByWarpgroup ? kHopperSharedBytes : kPortableSharedBytes;
  static_assert(kRowTiles >= 1 && kColumnTiles >= 1 && kStagesInFlight >= 1);
  static_assert(!kByWarpgroup || (kWarpsM == kPanels * 4 && kWarpsN == 1 && kStageBytes % kSwizzleBytes == 0));
};

/// Tilings: few tokens are limited by reading the weight, many by the tensor cores.
template <MatrixInstruction kBy>
struct Tilings;
template <>
struct Tilings<MatrixInstruction::kMma> {
  static constexpr auto kBy = MatrixInstruction::kMma;
  using Tokens8 = Tiling<kBy, 1, 8, 4, 1, 6, 4>;
  using Tokens16 = Tiling<kBy, 1, 16, 4, 1, 5, 4>;
  using Tokens32 = Tiling<kBy, 1, 32, 4, 1, 4, 4>;
  using Tokens64 = Tiling<kBy, 2, 64, 4, 2, 3, 2>;
  using Tokens128 = Tiling<kBy, 2, 128, 4, 2, 3, 1>;
};
template <>
struct Tilings<MatrixInstruction::kWgmma> {
  static constexpr auto kBy = MatrixInstruction::kWgmma;
  using Tokens8 = Tiling<kBy, 1, 8, 4, 1, 6, 4>;
  using Tokens16 = Tiling<kBy, 1, 16, 4, 1, 5, 4>;
  using Tokens32 = Tiling<kBy, 1, 32, 4, 1, 4, 4>;
  using Tokens64 = Tiling<kBy, 2, 64, 8, 1, 4, 2>;
  using Tokens128 = Tiling<kBy, 2, 128, 8, 1, 5, 1>;
};

/// Returns the tokens per tile that suit `rows` rows of one weight. Results do not depend on it.
constexpr int32_t tile_tokens(int32_t rows) {
  return rows <= 8 ? 8 : rows <= 16 ? 16 : rows <= 32 ? 32 : rows <= 64 ? 64 : 128;
}
/// Calls use(tiling) with the tiling of an instruction for `tokens` tokens.
template <class Use>
void with_tiling(MatrixInstruction by, int32_t tokens, const Use& use) {
  const auto choose = [&](auto tilings) {
    using Of = decltype(tilings);
    switch (tokens) {
      case 8: return use(typename Of::Tokens8{});
      case 16: return use(typename Of::Tokens16{});
      case 32: return use(typename Of::Tokens32{});
      case 64: return use(typename Of::Tokens64{});
      default: return use(typename Of::Tokens128{});
    }
  };
  if (by == MatrixInstruction::kWgmma) return choose(Tilings<MatrixInstruction::kWgmma>{});
  choose(Tilings<MatrixInstruction::kMma>{});
}

/// The accumulators of one warp, in the layout of mma or wgmma.
template <class T>
using Accumulators = float[T::kRowTiles][T::kColumnTiles][4];

/// Which 16-byte chunks of a tile's tokens a thread copies in every step: one of each of some tokens.
template <class T>
struct TokenChunks {
  static constexpr int kOfToken = kStepRowBytes / 16;
  static constexpr int kInputs = kStepInputs / kOfToken;  ///< of a chunk
  static constexpr int kLoads = ceil_div(T::kTokenCount * kOfToken, T::kThreads);
  static_assert(T::kThreads % kOfToken == 0);

  __device__ static int chunk(int thread) { return thread % kOfToken; }
  __device__ static int token(int thread, int i) { return (thread + i * T::kThreads) / kOfToken; }
  __device__ static bool has_token(int thread, int i) {
    return T::kTokenCount * kOfToken % T::kThreads == 0 || token(thread, i) < T::kTokenCount;
  }
};

/// Starts the copies of steps of a tile's tokens. Each thread copies the same chunks in every step. Inputs and tokens
/// outside the operand become zeros.
template <class T, class Rows>
class TokenLoader {
 public:
  __device__ TokenLoader(const GemmParams& p, const Rows& rows)
      : p_(p), rows_(rows), thread_(threadIdx.x), aligned_(p.inputs % kChunkInputs == 0) {
#pragma unroll
    for (int i = 0; i < kTokenLoads; ++i) {
      const bool is_there = has_token(i) && rows.has(token(i));
      tokens_[i] = p.x + (is_there ? static_cast<size_t>(rows.source(token(i))) * p.inputs + first_input() : 0);
      there_ |= static_cast<uint32_t>(is_there) << i;
    }
  }
  __device__ void load_step(int32_t step, std::byte* to) const {
    const int32_t input = step * kStepInputs;
    if (!aligned_) return copy_tokens(input, to);
    const bool known = input + first_input() < p_.inputs;
#pragma unroll
    for (int i = 0; i < kTokenLoads; ++i) {
      if (!has_token(i)) continue;
      copy_async(to + chunk_offset(token(i), chunk()), known ? tokens_[i] + input : p_.x,
                 known && (there_ >> i & 1) != 0 ? 16 : 0);
    }
  }

 private:
  using Chunks = TokenChunks<T>;
  static constexpr int kChunkInputs = Chunks::kInputs;
  static constexpr int kTokenLoads = Chunks::kLoads;

  __device__ int chunk() const { return Chunks::chunk(thread_); }
  __device__ int32_t first_input() const { return chunk() * kChunkInputs; }
  __device__ int token(int i) const { return Chunks::token(thread_, i); }
  __device__ bool has_token(int i) const { return Chunks::has_token(thread_, i); }
  /// Copies rows that are not aligned to 16 bytes.
  __device__ void copy_tokens(int32_t input, std::byte* to) const {
    for (int i = 0; i < kTokenLoads; ++i) {
      if (!has_token(i)) continue;
      const int32_t first = input + first_input();
      const uint16_t* const from =
          p_.x + (rows_.has(token(i)) ? static_cast<size_t>(rows_.source(token(i))) * p_.inputs : 0);
      auto* const chunk_of_token = reinterpret_cast<uint16_t*>(to + chunk_offset(token(i), chunk()));
      const int32_t known = rows_.has(token(i)) ? p_.inputs - first : 0;
      for (int j = 0; j < kChunkInputs; ++j) chunk_of_token[j] = j < known ? from[first + j] : uint16_t{0};
    }
  }

  const GemmParams& p_;
  const Rows& rows_;
  const int thread_;
  const bool aligned_;
  const uint16_t* tokens_[kTokenLoads];
  uint32_t there_ = 0;  // one bit per pointer: set if the token exists
};

/// Starts the copies of steps of a tile's panels and tokens. Panels outside the weight become zeros.
template <class T, class Rows>
class TileLoader {
 public:
  __device__ TileLoader(const GemmParams& p, const Rows& rows, int32_t first_panel)
      : tokens_(p, rows), thread_(threadIdx.x) {
    const size_t panel_bytes = static_cast<size_t>(ceil_div(p.inputs, kStepInputs)) * kPanelStepBytes;
    weights_ = p.weight + first_panel * panel_bytes + thread_ * 16;
    panels_ = p.panels - first_panel;
    panel_bytes_ = panels_ > 1 ? panel_bytes : 0;
  }
  __device__ void load_step(int32_t step, std::byte* stage) const {
#pragma unroll
    for (int i = 0; i < kWeightLoads; ++i) {
      constexpr int kOfPanel = kPanelStepBytes / 16 / T::kThreads;
      const int panel = i / kOfPanel;
      const std::byte* const from =
          weights_ + (panel > 0 ? panel_bytes_ : 0) + static_cast<size_t>(step) * kPanelStepBytes;
      copy_async(stage + (thread_ + i * T::kThreads) * 16, from + i % kOfPanel * T::kThreads * 16,
                 panel < panels_ ? 16 : 0);
    }
    tokens_.load_step(step, stage + T::kWeightBytes);
  }

 private:
  static constexpr int kWeightLoads = T::kWeightBytes / 16 / T::kThreads;
  static_assert(T::kPanelCount <= 2 && kPanelStepBytes / 16 % T::kThreads == 0);

  const TokenLoader<T, Rows> tokens_;
  const int thread_;
  const std::byte* weights_;  // this thread's first chunk of step 0
  size_t panel_bytes_;        // 0 where there is no second panel
  int32_t panels_;            // from this tile's first panel on
};

/// Loads operand b of mma for this warp's tokens: of each eight tokens 32 inputs, those of a half of a step.
template <class T>
__device__ void load_token_operands(const std::byte* tokens, int half, uint32_t (&b)[T::kColumnTiles][4]) {
  const int warp_n = threadIdx.x / kLanes % T::kWarpsAlongTokens;
  const int lane = threadIdx.x % kLanes;
#pragma unroll
  for (int n = 0; n < T::kColumnTiles; ++n) {
    const int token = (warp_n * T::kColumnTiles + n) * 8 + lane % 8;
    load_matrix(b[n], tokens + chunk_offset(token, half * 4 + lane / 8));
  }
}

template <class T>
__device__ void multiply_step(const std::byte* features, const std::byte* tokens, Accumulators<T>& sums) {
  const int warp_m = threadIdx.x / kLanes / T::kWarpsAlongTokens;
  const int lane = threadIdx.x % kLanes;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t b[T::kColumnTiles][4];
    load_token_operands<T>(tokens, half, b);
#pragma unroll
    for (int quarter = 0; quarter < 2; ++quarter) {
#pragma unroll
      for (int m = 0; m < T::kRowTiles; ++m) {
        const int row = (warp_m * T::kRowTiles + m) * 16 + lane % 16;
        uint32_t a[4];
        load_matrix(a, features + chunk_offset(row, half * 4 + quarter * 2 + lane / 16));
#pragma unroll
        for (int n = 0; n < T::kColumnTiles; ++n) {
          const uint32_t pair[2] = {b[n][quarter * 2], b[n][quarter * 2 + 1]};
          mma(sums[m][n], a, pair);
        }
      }
    }
  }
}

/// Starts the multiplication by warpgroups, each with a panel of its own.
template <class T>
__device__ void begin_step(const std::byte* panels, const std::byte* rows, Accumulators<T>& sums) {
  const int panel = static_cast<int>(threadIdx.x) / (4 * kLanes);
  const uint32_t features = shared_address(panels) + panel * kPanelStepBytes;
  const uint32_t tokens = shared_address(rows);
  wgmma_fence();
#pragma unroll
  for (int inputs = 0; inputs < kStepInputs; inputs += 16) {
    wgmma<T::kTokenCount>(sums[0], swizzled_operand(features + inputs * 2), swizzled_operand(tokens + inputs * 2));
  }
  wgmma_commit();
}

/// Walks over the steps [first, last) of a tile in stretches, with up to kStagesInFlight further steps in flight.
template <class T, class Rows, bool kDequantizes = T::kDequantizes>
class GemmMainloop {
 public:
  __device__ GemmMainloop(const GemmParams& p, const Rows& rows, int32_t first_panel, int32_t first, int32_t last)
      : loads_(p, rows, first_panel), last_(last), step_(first) {
#pragma unroll
    for (int32_t s = 0; s < T::kStagesInFlight; ++s) load_step(first + s, s);
  }
  /// Adds the products of all steps before `end` to the sums. wgmma's sums are complete on return.
  __device__ void run_until(int32_t end, Accumulators<T>& sums) {
    for (; step_ < end; ++step_) {
      wait_copies<T::kStagesInFlight - 1>();
      if constexpr (T::kByWarpgroup) fence_async_proxy();
      __syncthreads();
      const int32_t free = stage_ + T::kStagesInFlight < T::kStageCount ? stage_ + T::kStagesInFlight
                                                                        : stage_ + T::kStagesInFlight - T::kStageCount;
      const std::byte* const stage = shared_memory() + stage_ * T::kStageBytes;
      if constexpr (T::kByWarpgroup) {
        begin_step<T>(stage, stage + T::kWeightBytes, sums);
        load_step(step_ + T::kStagesInFlight, free);
        wgmma_wait<1>();  // after the next barrier no thread reads the previous stage
      } else {
        load_step(step_ + T::kStagesInFlight, free);
        multiply_step<T>(stage, stage + T::kWeightBytes, sums);
      }
      stage_ = stage_ + 1 < T::kStageCount ? stage_ + 1 : 0;
    }
    if constexpr (T::kByWarpgroup) wgmma_wait<0>();
  }

 private:
  __device__ void load_step(int32_t step, int32_t stage) const {
    if (step < last_) loads_.load_step(step, shared_memory() + stage * T::kStageBytes);
    commit_copies();
  }

  const TileLoader<T, Rows> loads_;
  const int32_t last_;
  int32_t step_;
  int32_t stage_ = 0;  // of step_
};

/// Stores a warp's sums to tile [token][feature] in shared memory.
template <class T>
__device__ void store_accumulators(const Accumulators<T>& sums, float* tile) {
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

/// Publishes what this block has written of a tile. Returns true in the last of its blocks, which sees all of it.
template <class T>
__device__ bool arrives_last(const GemmParams& p, int32_t tile_index) {
  __threadfence();
  __syncthreads();
  auto* const turn = reinterpret_cast<uint32_t*>(shared_memory() + T::kSumBytes);
  if (threadIdx.x == 0) *turn = atomicAdd(p.arrived + tile_index, 1u);
  __syncthreads();
  if (*turn != static_cast<uint32_t>(p.splits - 1)) return false;
  __threadfence();
  if (threadIdx.x == 0) p.arrived[tile_index] = 0;
  return true;
}

/// Publishes this split's tile. Returns true in the last block to arrive, whose tile then holds the sum over the
/// splits.
template <class T>
__device__ bool reduce_splits(const GemmParams& p, int32_t tile_index, int32_t tiles, int32_t split, float* tile) {
  constexpr int kSums = T::kTokenCount * T::kFeatures;
  const auto address = [&](int i) { return tile + i / T::kFeatures * T::kSumStride + i % T::kFeatures; };
  const auto partial = [&](int32_t s) { return p.partials + (static_cast<size_t>(s) * tiles + tile_index) * kSums; };
  for (int i = threadIdx.x * 4; i < kSums; i += T::kThreads * 4) {
    *reinterpret_cast<float4*>(partial(split) + i) = *reinterpret_cast<const float4*>(address(i));
  }
  if (!arrives_last<T>(p, tile_index)) return false;
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

/// Makes outputs of the sums of a row: by join(gate, up, feature, row) with kSiluMul, else by pass(sum, row).
struct SiluMul {
  __device__ float join(float gate, float up, int32_t /*feature*/, int32_t /*row*/) const {
    return times_sigmoid(gate, gate) * up;
  }
  __device__ float pass(float sum, int32_t /*row*/) const { return sum; }
};

/// Applies the epilogue to up to four adjacent features of a row and stores them.
__device__ inline void store_outputs(const GemmParams& p, const float (&sums)[4], int32_t row, int32_t feature) {
  const int32_t count = min(4, p.features - feature);
  const int32_t columns = p.columns > 0 ? p.columns : p.features;
  const int32_t column = p.first_column + feature;
  const size_t at = static_cast<size_t>(row) * columns + column;
  const bool whole = (p.features | columns | p.first_column) % 4 == 0;
  float values[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) values[i] = i < count && p.bias != nullptr ? sums[i] + p.bias[column + i] : sums[i];
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

/// Returns the groups of four outputs that a panel gives per row.
__device__ inline int quads_of_panel(const GemmParams& p) {
  return p.epilogue == Epilogue::kSiluMul ? kPanelRows / 8 : kPanelRows / 4;
}
/// Stores outputs 4 · quad… of the sums of a row from feature first_feature of the packed matrix on.
template <class Activate = SiluMul>
__device__ inline void store_quad(const GemmParams& p, const float* row_sums, int quad, int32_t first_feature,
                                  int32_t row, const Activate& activate = {}) {
  const bool gated = p.epilogue == Epilogue::kSiluMul;
  const int feature = quad * 4;
  const int32_t out_feature = (gated ? first_feature / 2 : first_feature) + feature;
  if (out_feature >= p.features) return;
  const float* const from = row_sums + (gated ? feature / 8 * 16 + feature % 8 : feature);
  float sums[4];
#pragma unroll
  for (int j = 0; j < 4; ++j)
    sums[j] = gated ? activate.join(from[j], from[8 + j], out_feature + j, row) : activate.pass(from[j], row);
  store_outputs(p, sums, row, out_feature);
}

template <class T, class Rows, class Activate = SiluMul>
__device__ void run_epilogue(const GemmParams& p, const Rows& rows, int32_t first_feature, const float* tile,
                             const Activate& activate = {}) {
  const int quads = quads_of_panel(p) * T::kPanelCount;
  for (int i = threadIdx.x; i < T::kTokenCount * quads; i += T::kThreads) {
    const int token = i / quads;
    if (!rows.has(token)) continue;
    store_quad(p, tile + token * T::kSumStride, i % quads, first_feature, rows.target(token), activate);
  }
}

/// Stores a tile's sums to shared memory: those of one split or, when `alone`, the sum over all splits in order.
template <class T, class Rows>
__device__ __forceinline__ void compute_tile(const GemmParams& p, const Rows& rows, int32_t first_panel, int32_t split,
                                             bool alone, float* tile) {
  const int32_t steps = ceil_div(p.inputs, kStepInputs);
  const int32_t last_split = alone ? p.splits : split + 1;
  const auto begin = [&](int32_t of) { return split_begin(of, p.splits, steps); };
  GemmMainloop<T, Rows> walk(p, rows, first_panel, begin(split), begin(last_split));
  Accumulators<T> sums = {};
#pragma unroll 1
  for (int32_t of = split; of < last_split; ++of) {
    Accumulators<T> next = {};
    walk.run_until(begin(of + 1), next);
#pragma unroll
    for (int m = 0; m < T::kRowTiles; ++m) {
#pragma unroll
      for (int n = 0; n < T::kColumnTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[m][n][i] = of == split ? next[m][n][i] : sums[m][n][i] + next[m][n][i];
      }
    }
  }
  wait_copies<0>();
  __syncthreads();
  store_accumulators<T>(sums, tile);
  __syncthreads();
}

/// Grid: [token tiles, feature tiles, splits or 1]. With one block for all splits it adds their sums itself; otherwise
/// the last block of a tile does. Both add in the order of the splits.
template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kMinBlocks) gemm_kernel(GemmParams p) {
  const RowRange rows{static_cast<int32_t>(blockIdx.x) * T::kTokenCount, p.rows};
  const int32_t first_panel = static_cast<int32_t>(blockIdx.y) * T::kPanelCount;
  const auto split = static_cast<int32_t>(blockIdx.z);
  const bool alone = gridDim.z == 1;
  auto* const tile = reinterpret_cast<float*>(shared_memory());
  compute_tile<T>(p, rows, first_panel, split, alone, tile);
  const auto tile_index = static_cast<int32_t>(blockIdx.y * gridDim.x + blockIdx.x);
  if (!alone && !reduce_splits<T>(p, tile_index, static_cast<int32_t>(gridDim.x * gridDim.y), split, tile)) return;
  run_epilogue<T>(p, rows, (p.first_panel + first_panel) * kPanelRows, tile);
}

}  // namespace millrace::cuda
