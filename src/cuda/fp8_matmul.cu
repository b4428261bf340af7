#include "cuda/fp8_gemm.cuh"

namespace millrace::cuda {
namespace {

constexpr int kQuantizeWarps = 4;
constexpr int kLaneInputs = kFp8StepInputs / kLanes;
constexpr float kMaxE4M3 = 448.0f;
/// Rows are padded to a multiple of every tile.
constexpr int32_t kRowMultiple = 128;

/// Returns the E4M3 number that is nearest to a value of at most 448, ties to even.
__device__ uint32_t nearest_e4m3(float value) {
  constexpr uint32_t kMinNormal = 121u << 23;
  constexpr uint32_t kExponentOffset = 120u << 3;
  const uint32_t word = __float_as_uint(value);
  const uint32_t magnitude = word & 0x7FFFFFFFu;
  const uint32_t sign = word >> 24 & 0x80u;
  if (magnitude < kMinNormal) return sign | static_cast<uint32_t>(rintf(__uint_as_float(magnitude) * 512.0f));
  return sign | ((magnitude + 0x7FFFFu + (magnitude >> 20 & 1u)) >> 20) - kExponentOffset;
}

/// Grid: [rows, groups of steps]. A warp rounds 128 inputs of a row to E4M3 with the scale largest / 448. Inputs that
/// are not finite make the scale NaN.
__global__ void __launch_bounds__(kQuantizeWarps* kLanes)
    quantize_fp8_kernel(const uint16_t* x, int32_t inputs, int32_t padded_rows, uint32_t* codes, float* scales) {
  const int lane = static_cast<int>(threadIdx.x % kLanes);
  const int32_t row = static_cast<int32_t>(blockIdx.x);
  const int32_t step = static_cast<int32_t>(blockIdx.y * kQuantizeWarps + threadIdx.x / kLanes);
  if (step * kFp8StepInputs >= inputs) return;
  const size_t at = static_cast<size_t>(row) * inputs + step * kFp8StepInputs + lane * kLaneInputs;
  const uint2 read = *reinterpret_cast<const uint2*>(x + at);
  const float values[kLaneInputs] = {__uint_as_float(read.x << 16), __uint_as_float(read.x & 0xFFFF0000u),
                                     __uint_as_float(read.y << 16), __uint_as_float(read.y & 0xFFFF0000u)};
  uint32_t largest = 0;
  for (const float value : values) largest = max(largest, __float_as_uint(value) & 0x7FFFFFFFu);
  largest = __reduce_max_sync(kAllLanes, largest);
  const bool is_finite = largest < 0x7F800000u;
  const float scale = is_finite ? __uint_as_float(largest) / kMaxE4M3 : __uint_as_float(0x7FFFFFFFu);
  uint32_t word = 0;
  if (is_finite && scale > 0.0f) {
#pragma unroll
    for (int i = 0; i < kLaneInputs; ++i) {
      const float value = values[i] / scale;
      word |= nearest_e4m3(fminf(fmaxf(value, -kMaxE4M3), kMaxE4M3)) << 8 * i;
    }
  }
  codes[at / kLaneInputs] = word;
  if (lane == 0) scales[static_cast<size_t>(step) * padded_rows + row] = scale;
}

/// The parts of the workspace.
struct Fp8Workspace {
  size_t codes_at = 0;
  size_t scales_at = 0;
  size_t bytes = 0;
};
Fp8Workspace workspace_of(int32_t panels, int32_t inputs, int32_t splits, int32_t rows) {
  const auto aligned = [](size_t bytes) { return (bytes + kSwizzleBytes - 1) / kSwizzleBytes * kSwizzleBytes; };
  const int32_t padded = round_up(rows, kRowMultiple);
  const int32_t divided = padded < kMaxSplitRows ? padded : kMaxSplitRows;
  const size_t sums = splits > 1 ? static_cast<size_t>(splits) * static_cast<size_t>(divided) *
                                       static_cast<size_t>(round_up(panels, kWidePanels * kClusterBlocks)) *
                                       kPanelRows * sizeof(float)
                                 : 0;
  Fp8Workspace space{.codes_at = aligned(kCounterBytes + sums)};
  space.scales_at = aligned(space.codes_at + static_cast<size_t>(rows) * static_cast<size_t>(inputs));
  space.bytes = space.scales_at + static_cast<size_t>(inputs / kFp8StepInputs) * static_cast<size_t>(padded) * 4;
  return space;
}

/// Returns the splits of every sum.
int32_t fp8_splits(const DeviceWeight& weight) {
  return weight.shards.count > 0 ? weight.shards.count : splits_of_weight(weight, weight.in_features / kFp8StepInputs);
}

template <class T, bool kTree>
void launch_fp8(cudaStream_t stream, const GemmParams& product, const Fp8Rows& rows) {
  const int32_t multiprocessors = multiprocessor_count();
  WideGrid grid{.token_tiles = ceil_div(product.rows, T::kTokenCount),
                .feature_pairs = ceil_div(product.panels, kWidePanels * kClusterBlocks)};
  const int32_t whole = grid.token_tiles * grid.feature_pairs;
  grid.divides = product.splits > 1 && product.rows <= kMaxSplitRows &&
                 whole * kClusterBlocks * kWidePanels <= kCounters && whole * kClusterBlocks < multiprocessors;
  const int32_t turns = whole * (grid.divides ? product.splits : 1);
  const int32_t clusters = multiprocessors / kClusterBlocks;
  launch<fp8_gemm_kernel<T, kTree>>(
      {.name = "product in FP8",
       .grid = dim3((turns < clusters ? turns : clusters) * kClusterBlocks),
       .block = dim3(T::kThreads),
       .shared_bytes = T::kSharedBytes,
       .cluster_blocks = kClusterBlocks},
      stream, product,
      make_row_tiles(product.x, product.rows, product.inputs, kStepInputs, T::kTokenCount / kClusterBlocks), rows,
      grid);
}

template <bool kTree>
void launch_tiles_of(cudaStream_t stream, const GemmParams& product, const Fp8Rows& rows) {
  if (product.rows <= 16) return launch_fp8<Fp8Tokens16, kTree>(stream, product, rows);
  if (product.rows <= 64) return launch_fp8<Fp8Tokens64, kTree>(stream, product, rows);
  launch_fp8<Fp8Tokens128, kTree>(stream, product, rows);
}

}  // namespace

size_t fp8_workspace_bytes(const DeviceWeight& weight, int32_t rows) {
  const int32_t panels = panel_count(weight.out_features, weight.gate_up);
  return workspace_of(panels, weight.in_features, fp8_splits(weight), rows).bytes;
}

void run_fp8(cudaStream_t stream, const GemmParams& product, const DeviceWeight& weight, void* workspace) {
  const int32_t splits = fp8_splits(weight);
  const Fp8Workspace space = workspace_of(product.panels, product.inputs, splits, product.rows);
  auto* const memory = static_cast<std::byte*>(workspace);
  const Fp8Rows rows{.scales = reinterpret_cast<const float*>(memory + space.scales_at),
                     .padded_rows = round_up(product.rows, kRowMultiple)};
  const auto groups = static_cast<uint32_t>(ceil_div(product.inputs / kFp8StepInputs, kQuantizeWarps));
  launch<quantize_fp8_kernel>({"quantize to FP8", dim3(product.rows, groups), dim3(kQuantizeWarps * kLanes)}, stream,
                              product.x, product.inputs, rows.padded_rows,
                              reinterpret_cast<uint32_t*>(memory + space.codes_at),
                              reinterpret_cast<float*>(memory + space.scales_at));
  GemmParams coded = product;
  coded.x = reinterpret_cast<const uint16_t*>(memory + space.codes_at);
  coded.inputs = product.inputs / 2;
  coded.splits = splits;
  for (int32_t& begin : coded.shards.begin) begin /= 2;
  (product.shards.count > 0 ? launch_tiles_of<true> : launch_tiles_of<false>)(stream, coded, rows);
}

}  // namespace millrace::cuda
