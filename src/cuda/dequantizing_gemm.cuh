#pragma once

// GEMM of weights of 4 and 8 bits: each step is dequantized to bf16 in shared memory while the step before is
// multiplied. Sums have the order of gemm.cuh, so that their bits are those of a GEMM with weights in bf16.

#include "cuda/dequantize.cuh"
#include "cuda/gemm.cuh"

namespace millrace::cuda {

/// The tile of T for weights that are not in bf16. Shared memory has two steps of dequantized panels, then stages of
/// tokens and codes.
template <class T>
struct Dequantizing : T {
  static constexpr bool kDequantizes = true;
  /// Steps whose copies are in flight, with the one that is dequantized.
  static constexpr int kStagesInFlight = T::kStageCount - 1;
  static constexpr int kTokenBytes = T::kTokenCount * kStepRowBytes;
  static constexpr int kStageBytes = kTokenBytes + T::kPanelCount * kMaxCodedStepBytes;
  static constexpr int kStagesAt = 2 * T::kWeightBytes;
  static constexpr int kUsedBytes = kStagesAt + T::kStageCount * kStageBytes;
  static constexpr int kSharedBytes = kUsedBytes > T::kSumBytes ? kUsedBytes : T::kSumBytes;
  static_assert(kStagesInFlight >= 2 && T::kThreads == T::kPanelCount * kPanelRows * kUnitsPerStep);
  static_assert(kStageBytes % kSwizzleBytes == 0);
};

/// Returns the tokens per tile for `rows` rows. Tiles of mma have at most 64, for want of shared memory.
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

/// Copies the codes and scales of steps of a tile's panels. A thread may dequantize what others have copied, so that a
/// barrier precedes dequantize(). Panels outside the weight become zeros.
template <class T>
class CodeLoader {
 public:
  __device__ CodeLoader(const GemmParams& p, int32_t first_panel)
      : step_bytes_(step_bytes(p.format)),
        chunks_(step_bytes_ / 16),
        has_panel_(first_panel + panel() < p.panels),
        from_(p.weight + (first_panel + (has_panel_ ? panel() : 0)) *
                             (static_cast<size_t>(ceil_div(p.inputs, kStepInputs)) * step_bytes_)) {}
  /// Returns the codes of this thread's panel in a stage.
  __device__ static std::byte* panel_codes(std::byte* codes) { return codes + panel() * kMaxCodedStepBytes; }
  __device__ void load_step(int32_t step, std::byte* codes) const {
    const std::byte* const from = from_ + static_cast<size_t>(step) * step_bytes_;
    std::byte* const to = panel_codes(codes);
    for (int chunk = unit(); chunk < chunks_; chunk += kPanelThreads) {
      copy_async(to + chunk * 16, from + chunk * 16, has_panel_ ? 16 : 0);
    }
  }
  /// Dequantizes this thread's unit of a step, of the first one with `kFirst`.
  template <bool kFirst>
  __device__ static void dequantize(const GemmParams& p, std::byte* codes, std::byte* panels) {
    const int row = unit() % kPanelRows;
    const int half = unit() / kPanelRows;
    std::byte* const tile = panels + panel() * kPanelStepBytes;
    if constexpr (kFirst) {
      dequantize_first_unit(p.format, panel_codes(codes), row, half, tile);
    } else {
      dequantize_unit(p.format, panel_codes(codes), row, half, tile);
    }
  }

 private:
  static constexpr int kPanelThreads = T::kThreads / T::kPanelCount;
  __device__ static int panel() { return static_cast<int>(threadIdx.x) / kPanelThreads; }
  __device__ static int unit() { return static_cast<int>(threadIdx.x) % kPanelThreads; }

  const int step_bytes_;
  const int chunks_;
  const bool has_panel_;
  const std::byte* const from_;
};

template <class T, class Rows>
class GemmMainloop<T, Rows, true> {
 public:
  __device__ GemmMainloop(const GemmParams& p, const Rows& rows, int32_t first_panel, int32_t first, int32_t last)
      : p_(p), tokens_(p, rows), codes_(p, first_panel), last_(last), step_(first) {
#pragma unroll
    for (int32_t s = 0; s < T::kStagesInFlight; ++s) load_step(first + s, s);
    wait_copies<T::kStagesInFlight - 1>();
    __syncthreads();
    if (first < last) dequantize<true>(first, 0);
  }
  /// Adds the products of all steps before `end` to the sums, which are complete on return.
  __device__ void run_until(int32_t end, Accumulators<T>& sums) {
    for (; step_ < end; ++step_) {
      wait_copies<T::kStagesInFlight - 2>();
      if constexpr (T::kByWarpgroup) fence_async_proxy();
      // All threads see the step's weights and the next step's codes, and none reads the step before.
      __syncthreads();
      const int32_t next = stage_ + 1 < T::kStageCount ? stage_ + 1 : 0;
      const std::byte* const panels = buffer(step_);
      const std::byte* const tokens = stage(stage_);
      load_step(step_ + T::kStagesInFlight, stage_ > 0 ? stage_ - 1 : T::kStageCount - 1);
      if constexpr (T::kByWarpgroup) {
        begin_step<T>(panels, tokens, sums);
        if (step_ + 1 < last_) dequantize<false>(step_ + 1, next);
        wgmma_wait<0>();
      } else {
        if (step_ + 1 < last_) dequantize<false>(step_ + 1, next);
        multiply_step<T>(panels, tokens, sums);
      }
      stage_ = next;
    }
  }

 private:
  __device__ std::byte* buffer(int32_t step) const { return shared_memory() + (step & 1) * T::kWeightBytes; }
  __device__ std::byte* stage(int32_t index) const { return shared_memory() + T::kStagesAt + index * T::kStageBytes; }
  __device__ void load_step(int32_t step, int32_t index) const {
    if (step < last_) {
      tokens_.load_step(step, stage(index));
      codes_.load_step(step, stage(index) + T::kTokenBytes);
    }
    commit_copies();
  }
  template <bool kFirst>
  __device__ void dequantize(int32_t step, int32_t index) const {
    CodeLoader<T>::template dequantize<kFirst>(p_, stage(index) + T::kTokenBytes, buffer(step));
  }

  const GemmParams& p_;
  const TokenLoader<T, Rows> tokens_;
  const CodeLoader<T> codes_;
  const int32_t last_;
  int32_t step_;
  int32_t stage_ = 0;  // of step_
};

/// Computes a GEMM with a weight in bf16; with one that has shards.
void run_bf16(cudaStream_t stream, const GemmParams& product, MatrixInstruction by);
void run_bf16_shards(cudaStream_t stream, const GemmParams& product, MatrixInstruction by);
/// Computes a GEMM, with shards or without, with a weight that is not in bf16. The workspace is that of
/// dequantizing_workspace_bytes().
void run_dequantizing(cudaStream_t stream, const GemmParams& product, MatrixInstruction by, void* workspace);

}  // namespace millrace::cuda
