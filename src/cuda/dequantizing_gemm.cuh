#pragma once

// GEMM of weights of 4 and 8 bits, which are dequantized to bf16 in registers. Sums have the order of gemm.cuh, so that
// their bits are those of a GEMM with weights in bf16.

#include "cuda/fragments.cuh"
#include "cuda/gemm.cuh"

namespace millrace::cuda {

/// The tile of T for weights that are not in bf16. A stage has tokens, then codes.
template <class T>
struct Dequantizing : T {
  static constexpr bool kDequantizes = true;
  static constexpr int kTokenBytes = T::kTokenCount * kStepRowBytes;
  static constexpr int kStageBytes = kTokenBytes + T::kPanelCount * kMaxCodedStepBytes;
  static constexpr int kUsedBytes = T::kStageCount * kStageBytes;
  static constexpr int kSharedBytes = kUsedBytes > T::kSumBytes ? kUsedBytes : T::kSumBytes;
  static_assert(kStageBytes % kSwizzleBytes == 0 && T::kThreads % T::kPanelCount == 0);
};

/// Returns the tokens per tile for `rows` rows. Tiles of mma have at most 64, for want of registers.
constexpr int32_t dequantizing_tile_tokens(MatrixInstruction by, int32_t rows) {
  constexpr int32_t kMaxByMma = 64;
  const int32_t tokens = tile_tokens(rows);
  return by == MatrixInstruction::kMma && tokens > kMaxByMma ? kMaxByMma : tokens;
}
/// Calls use(tiling) with the tiling for as many tokens as dequantizing_tile_tokens() returns.
template <class Use>
void with_dequantizing_tiling(MatrixInstruction by, int32_t tokens, const Use& use) {
  const auto few = [&](auto tilings) {
    using Of = decltype(tilings);
    switch (tokens) {
      case 8: return use(Dequantizing<typename Of::Tokens8>{});
      case 16: return use(Dequantizing<typename Of::Tokens16>{});
      case 32: return use(Dequantizing<typename Of::Tokens32>{});
      default: return use(Dequantizing<typename Of::Tokens64>{});
    }
  };
  if (by == MatrixInstruction::kMma) return few(Tilings<MatrixInstruction::kMma>{});
  if (tokens <= 64) return few(Tilings<MatrixInstruction::kWgmma>{});
  use(Dequantizing<Tilings<MatrixInstruction::kWgmma>::Tokens128>{});
}

/// Starts the copies of a tile's codes and scales, one step after another. Panels outside the weight become zeros.
template <class T>
class CodeLoader {
 public:
  __device__ CodeLoader(const GemmParams& p, int32_t first_panel, int32_t first_step)
      : step_bytes_(step_bytes(p.format)),
        bytes_(first_panel + panel() < p.panels ? 16 : 0),
        to_(kept(panel() * kMaxCodedStepBytes + chunk() * 16)),
        chunk_at_(kept(chunk() * 16)) {
    const size_t panel_bytes = static_cast<size_t>(ceil_div(p.inputs, kStepInputs)) * step_bytes_;
    from_ = p.weight + (first_panel + (bytes_ > 0 ? panel() : 0)) * panel_bytes +
            static_cast<size_t>(first_step) * step_bytes_ + chunk_at_;
  }
  __device__ void load_next(std::byte* codes) {
    std::byte* const to = codes + to_;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      constexpr int kStride = kPanelThreads * 16;
      const bool is_always = (i + 1) * kStride <= kMinCodedStepBytes;
      if (is_always || chunk_at_ + i * kStride < step_bytes_) copy_async(to + i * kStride, from_ + i * kStride, bytes_);
    }
    from_ += step_bytes_;
  }

 private:
  static constexpr int kPanelThreads = T::kThreads / T::kPanelCount;
  static constexpr int kLoads = ceil_div(kMaxCodedStepBytes / 16, kPanelThreads);
  __device__ static int panel() { return static_cast<int>(threadIdx.x) / kPanelThreads; }
  __device__ static int chunk() { return static_cast<int>(threadIdx.x) % kPanelThreads; }

  const int step_bytes_;
  const int bytes_;  // of a copy: 0 where there is no panel
  const int to_;
  const int chunk_at_;
  const std::byte* from_;
};

/// Starts the copies of a tile's tokens, one step after another: what TokenLoader does, with less arithmetic per step.
template <class T, class Rows>
class TokenWalk {
 public:
  __device__ TokenWalk(const GemmParams& p, const Rows& rows, int32_t first_step)
      : unaligned_(p, rows), is_aligned_(p.inputs % Chunks::kInputs == 0), step_(first_step) {
    const auto thread = static_cast<int>(threadIdx.x);
    const int32_t first_input = first_step * kStepInputs + Chunks::chunk(thread) * Chunks::kInputs;
    left_ = p.inputs - first_input;
#pragma unroll
    for (int i = 0; i < Chunks::kLoads; ++i) {
      const int token = Chunks::token(thread, i);
      const bool is_there = Chunks::has_token(thread, i) && rows.has(token);
      bytes_[i] = is_there ? 16 : 0;
      to_[i] = kept(chunk_offset(token, Chunks::chunk(thread)));
      from_[i] = p.x + (is_there ? static_cast<size_t>(rows.source(token)) * p.inputs + first_input : 0);
    }
  }
  __device__ void load_next(std::byte* to) {
    if (!is_aligned_) {
      unaligned_.load_step(step_++, to);
      return;
    }
#pragma unroll
    for (int i = 0; i < Chunks::kLoads; ++i) {
      const int bytes = left_ > 0 ? bytes_[i] : 0;
      if (Chunks::has_token(static_cast<int>(threadIdx.x), i)) copy_async(to + to_[i], from_[i], bytes);
      if (bytes > 0) from_[i] += kStepInputs;
    }
    left_ -= kStepInputs;
  }

 private:
  using Chunks = TokenChunks<T>;

  const TokenLoader<T, Rows> unaligned_;  // for rows that are not aligned to 16 bytes
  const bool is_aligned_;
  int32_t step_;
  int32_t left_;  // inputs from this thread's chunk on
  int32_t bytes_[Chunks::kLoads];
  int32_t to_[Chunks::kLoads];
  const uint16_t* from_[Chunks::kLoads];
};

template <class T, class Rows>
class GemmMainloop<T, Rows, true> {
 public:
  __device__ GemmMainloop(const GemmParams& p, const Rows& rows, int32_t first_panel, int32_t first, int32_t last)
      : p_(p),
        tokens_(p, rows, first),
        codes_(p, first_panel, first),
        format_(kept(format_number(p.format.codes, p.format.scales))),
        last_(last),
        step_(first),
        to_load_(first) {
    const int warp_m = static_cast<int>(threadIdx.x) / kLanes / T::kWarpsAlongTokens;
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    row_ = kept(warp_m * T::kRowTiles * 16 + lane / 4);
    quad_ = kept(lane % 4);
#pragma unroll
    for (int s = 0; s < T::kStagesInFlight; ++s) load_next();
  }
  /// Adds the products of all steps before `end` to the sums, which are complete on return.
  __device__ __forceinline__ void run_until(int32_t end, Accumulators<T>& sums) {
#pragma unroll 1
    for (; step_ < end; ++step_) {
      wait_copies<T::kStagesInFlight - 1>();
      if constexpr (T::kByWarpgroup) fence_async_proxy();
      // All threads see the step, and none reads that of the stage that is free.
      __syncthreads();
      load_next();
      const std::byte* const now = shared_memory() + now_at_;
      with_known_format(p_.format, format_, [&](const auto& known) {
        if constexpr (T::kByWarpgroup) {
          multiply_by_warpgroup(known, now, sums);
        } else {
          multiply_by_warps(known, now, sums);
        }
      });
      now_at_ = after(now_at_);
    }
  }

 private:
  /// The second half is dequantized while the first is multiplied.
  template <class Known>
  __device__ __forceinline__ void multiply_by_warpgroup(const Known& known, const std::byte* stage,
                                                        Accumulators<T>& sums) {
    const uint64_t rows = swizzled_operand(shared_address(stage));
    HalfOperands halves[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      dequantize(known, stage, 0, half, halves[half]);
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        // Addresses of operands count 16 bytes: those of 16 inputs are two.
        wgmma_registers<T::kTokenCount>(sums[0], halves[half].operand(i), rows + half * 4 + i * 2);
      }
      wgmma_commit();
    }
    wgmma_wait<0>();
  }
  template <class Known>
  __device__ __forceinline__ void multiply_by_warps(const Known& known, const std::byte* stage, Accumulators<T>& sums) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t b[T::kColumnTiles][4];
      load_token_operands<T>(stage, half, b);
#pragma unroll
      for (int m = 0; m < T::kRowTiles; ++m) {
        HalfOperands weights;
        dequantize(known, stage, m, half, weights);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
          for (int n = 0; n < T::kColumnTiles; ++n) {
            const uint32_t pair[2] = {b[n][i * 2], b[n][i * 2 + 1]};
            mma(sums[m][n], weights.operand(i), pair);
          }
        }
      }
    }
  }
  /// Dequantizes the half of a stage's step of this warp's m-th 16 rows.
  template <class Known>
  __device__ __forceinline__ void dequantize(const Known& known, const std::byte* stage, int m, int half,
                                             HalfOperands& to) const {
    const int row = row_ + m * 16;
    const std::byte* const codes = stage + T::kTokenBytes + row / kPanelRows * kMaxCodedStepBytes;
    to.dequantize(known, codes, row % kPanelRows, quad_, half);
  }
  __device__ static int32_t after(int32_t stage_at) {
    return stage_at + T::kStageBytes < T::kUsedBytes ? stage_at + T::kStageBytes : 0;
  }
  __device__ void load_next() {
    if (to_load_ < last_) {
      std::byte* const stage = shared_memory() + load_at_;
      tokens_.load_next(stage);
      codes_.load_next(stage + T::kTokenBytes);
    }
    commit_copies();
    ++to_load_;
    load_at_ = after(load_at_);
  }

  const GemmParams& p_;
  TokenWalk<T, Rows> tokens_;
  CodeLoader<T> codes_;
  const int format_;
  const int32_t last_;
  int32_t step_;
  int32_t to_load_;
  int32_t now_at_ = 0;   // the offset of step_'s stage
  int32_t load_at_ = 0;  // the offset of to_load_'s
  int row_;              // this lane's first
  int quad_;
};

/// Computes a GEMM with a weight in bf16; with one that has shards.
void run_bf16(cudaStream_t stream, const GemmParams& product, MatrixInstruction by);
void run_bf16_shards(cudaStream_t stream, const GemmParams& product, MatrixInstruction by);
/// Computes a GEMM, with shards or without, with a weight that is not in bf16. The workspace is that of
/// dequantizing_workspace_bytes().
void run_dequantizing(cudaStream_t stream, const GemmParams& product, MatrixInstruction by, void* workspace);

}  // namespace millrace::cuda
