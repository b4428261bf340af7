#include "cuda/dequantizing_gemm.cuh"
#include "cuda/sharded_gemm.cuh"
#include "cuda/wide_launch.cuh"

namespace millrace::cuda {
namespace {

/// Rows up to which every tile dequantizes the weights that it multiplies. More rows share dequantized panels.
constexpr int32_t kMaxTileRows = 256;
/// The maximum scratch of dequantized panels, unless those of one cluster take more.
constexpr size_t kMaxDequantizedBytes = size_t{128} << 20;
constexpr int kThreads = kPanelRows / 16 * kLanes;
/// Steps that a block dequantizes.
constexpr int32_t kBlockSteps = 4;

/// Shared memory of dequantize_kernel: a step in bf16, then its codes and scales.
constexpr int kDequantizeBytes = kPanelStepBytes + kMaxCodedStepBytes;

/// Grid: [blocks of steps, panels]. A warp dequantizes 16 rows of each step. Steps pass through shared memory, so that
/// a warp reads and writes whole lines.
__global__ void __launch_bounds__(kThreads)
    dequantize_kernel(const std::byte* weight, WeightFormat format, int32_t steps, std::byte* bf16) {
  const int32_t first = static_cast<int32_t>(blockIdx.x) * kBlockSteps;
  const int32_t last = min(first + kBlockSteps, steps);
  const auto thread = static_cast<int>(threadIdx.x);
  const int row = thread / kLanes * 16 + thread % kLanes / 4;
  const int quad = thread % 4;
  std::byte* const panel = shared_memory();
  std::byte* const codes = panel + kPanelStepBytes;
  const auto copy = [thread](std::byte* to, const std::byte* from, int bytes) {
    for (int i = thread; i < bytes / 16; i += kThreads) {
      reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
    }
  };
  for (int32_t step = first; step < last; ++step) {
    const size_t at = static_cast<size_t>(blockIdx.y) * steps + step;
    copy(codes, weight + at * step_bytes(format), step_bytes(format));
    __syncthreads();
    with_known_format(format, format_number(format.codes, format.scales), [&](const auto& known) {
      for (int half = 0; half < kUnitsPerStep; ++half) {
        HalfOperands weights;
        weights.dequantize(known, codes, row, quad, half);
        weights.store(panel, row, quad, half);
      }
    });
    __syncthreads();
    copy(bf16 + at * kPanelStepBytes, panel, kPanelStepBytes);
  }
}

/// Returns the panels that are dequantized together.
int32_t panels_at_once(int32_t panels, int32_t steps) {
  constexpr int32_t kMultiple = kWidePanels * kClusterBlocks;
  const auto fit = static_cast<int32_t>(kMaxDequantizedBytes / (static_cast<size_t>(steps) * kPanelStepBytes));
  const int32_t whole = fit < kMultiple ? kMultiple : fit / kMultiple * kMultiple;
  return whole < panels ? whole : panels;
}

size_t aligned(size_t bytes) {
  return (bytes + kSwizzleBytes - 1) / kSwizzleBytes * kSwizzleBytes;
}

void run_tiles(cudaStream_t stream, const GemmParams& product, MatrixInstruction by) {
  with_dequantizing_tiling(by, dequantizing_tile_tokens(by, product.rows), [&](auto tiling) {
    using T = decltype(tiling);
    if (product.shards.count > 0) {
      launch_tiles<sharded_gemm_kernel<T>, T>("dequantizing_sharded_product", stream, product);
    } else {
      launch_tiles<gemm_kernel<T>, T>("dequantizing_product", stream, product);
    }
  });
}

}  // namespace

size_t dequantizing_workspace_bytes(const DeviceWeight& weight, int32_t rows) {
  const int32_t panels = panel_count(weight.out_features, weight.gate_up);
  const int32_t steps = step_count(weight.in_features);
  const int32_t splits = weight.shards.count > 0 ? weight.shards.count : splits_of_weight(weight, steps);
  const size_t sums = split_workspace_bytes(splits, panels, rows);
  if (rows <= kMaxTileRows) return sums;
  return aligned(sums) + static_cast<size_t>(panels_at_once(panels, steps)) * static_cast<size_t>(steps) *
                             static_cast<size_t>(kPanelStepBytes);
}

void run_dequantizing(cudaStream_t stream, const GemmParams& product, MatrixInstruction by, void* workspace) {
  if (product.rows <= kMaxTileRows) return run_tiles(stream, product, by);
  const int32_t steps = step_count(product.inputs);
  std::byte* const bf16 =
      static_cast<std::byte*>(workspace) + aligned(split_workspace_bytes(product.splits, product.panels, product.rows));
  const int32_t count = panels_at_once(product.panels, steps);
  for (int32_t first = 0; first < product.panels; first += count) {
    GemmParams part = product;
    part.panels = count < product.panels - first ? count : product.panels - first;
    part.first_panel = first;
    part.weight = bf16;
    part.format = {};
    launch<dequantize_kernel>(
        {"dequantize", dim3(ceil_div(steps, kBlockSteps), part.panels), dim3(kThreads), kDequantizeBytes}, stream,
        product.weight + static_cast<size_t>(first) * steps * step_bytes(product.format), product.format, steps, bf16);
    (product.shards.count > 0 ? run_bf16_shards : run_bf16)(stream, part, by);
  }
}

}  // namespace millrace::cuda
