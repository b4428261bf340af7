#pragma once

// GEMMs of all heads in one launch: each head has rows and a weight of its own. By mma, whatever the number of rows.

#include "cuda/gemm.cuh"

namespace millrace::cuda {

/// The operands of all heads: x (bf16) [heads][rows][in], packed weights [heads] of [out, in], and out (bf16). Row r of
/// head h begins at element h · head_stride + r · row_stride · out_features of `out`.
struct HeadOperands {
  const uint16_t* x = nullptr;
  const void* weights = nullptr;
  uint16_t* out = nullptr;
  int32_t heads = 0;
  int32_t rows = 0;
  int32_t in_features = 0;
  int32_t out_features = 0;
  size_t head_stride = 0;
  int32_t row_stride = 1;
};

/// The rows of a tile, whose results lie apart.
struct StridedRows {
  int32_t first = 0;
  int32_t end = 0;
  int32_t stride = 1;
  __device__ bool has(int token) const { return first + token < end; }
  __device__ int32_t source(int token) const { return first + token; }
  __device__ int32_t target(int token) const { return (first + token) * stride; }
};

/// Grid: [token tiles, feature tiles, heads].
template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kMinBlocks) head_gemm_kernel(HeadOperands h) {
  const auto head = static_cast<size_t>(blockIdx.z);
  const int32_t panels = ceil_div(h.out_features, kPanelRows);
  const size_t weight_bytes = static_cast<size_t>(panels) * ceil_div(h.in_features, kStepInputs) * kPanelStepBytes;
  const GemmParams p{.x = h.x + head * h.rows * h.in_features,
                     .weight = static_cast<const std::byte*>(h.weights) + head * weight_bytes,
                     .out = h.out + head * h.head_stride,
                     .rows = h.rows,
                     .inputs = h.in_features,
                     .features = h.out_features,
                     .panels = panels,
                     .epilogue = Epilogue::kStoreBf16};
  const StridedRows rows{static_cast<int32_t>(blockIdx.x) * T::kTokenCount, h.rows, h.row_stride};
  const int32_t first_panel = static_cast<int32_t>(blockIdx.y) * T::kPanelCount;
  auto* const tile = reinterpret_cast<float*>(shared_memory());
  compute_tile<T>(p, rows, first_panel, 0, true, tile);
  run_epilogue<T>(p, rows, first_panel * kPanelRows, tile);
}

/// Computes out = x · Wᵀ for each head.
inline void head_matmul(cudaStream_t stream, const HeadOperands& h) {
  with_tiling(MatrixInstruction::kMma, tile_tokens(h.rows), [&](auto tiling) {
    using T = decltype(tiling);
    if constexpr (!T::kByWarpgroup) {
      const int32_t panels = ceil_div(h.out_features, kPanelRows);
      launch<head_gemm_kernel<T>>(
          {.name = "product of heads",
           .grid = dim3(ceil_div(h.rows, T::kTokenCount), ceil_div(panels, T::kPanelCount), h.heads),
           .block = dim3(T::kThreads),
           .shared_bytes = T::kSharedBytes},
          stream, h);
    }
  });
}

}  // namespace millrace::cuda
