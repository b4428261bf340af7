#include "cuda/dequantizing_gemm.cuh"
#include "cuda/fp8_gemm.cuh"
#include "cuda/sharded_gemm.cuh"

namespace millrace::cuda {
namespace {

constexpr int kRowThreads = 256;

ShardSteps steps_of(const DeviceShards& shards) {
  ShardSteps steps{.count = shards.count};
  for (int32_t s = 0; s <= shards.count; ++s) steps.begin[s] = ceil_div(shards.border[s], kStepInputs);
  return steps;
}

void check_shards(const DeviceWeight& weight) {
  const DeviceShards& shards = weight.shards;
  bool is_whole = shards.count > 0 && shards.count <= kMaxShards && !weight.gate_up &&
                  shards.border[shards.count] == weight.in_features;
  for (int32_t s = 0; is_whole && s < shards.count; ++s) {
    is_whole = shards.border[s] == shards.border[s + 1] || shards.border[s] % kStepInputs == 0;
  }
  if (!is_whole) throw std::invalid_argument("sharded_matmul: found a weight without whole shards of its inputs");
}

void run_sharded(cudaStream_t stream, const void* x, const DeviceWeight& weight, const float* bias, int32_t rows,
                 void* out, Epilogue epilogue, void* workspace) {
  check_shards(weight);
  const GemmParams product{.x = static_cast<const uint16_t*>(x),
                           .weight = static_cast<const std::byte*>(weight.data),
                           .bias = bias,
                           .out = out,
                           .partials = reinterpret_cast<float*>(static_cast<std::byte*>(workspace) + kCounterBytes),
                           .arrived = static_cast<uint32_t*>(workspace),
                           .rows = rows,
                           .inputs = weight.in_features,
                           .features = weight.out_features,
                           .panels = panel_count(weight.out_features, false),
                           .splits = weight.shards.count,
                           .epilogue = epilogue,
                           .shards = steps_of(weight.shards),
                           .format = weight.format};
  if (weight.format.codes == WeightCodes::kBf16) return run_bf16_shards(stream, product, weight.by);
  if (weight.format.codes == WeightCodes::kE4M3Both) return run_fp8(stream, product, weight, workspace);
  run_dequantizing(stream, product, weight.by, workspace);
}

/// Grid: [rows]. Each thread copies some inputs of a row.
__global__ void __launch_bounds__(kRowThreads)
    spread_shards_kernel(const uint16_t* x, DeviceShards from, DeviceShards to, uint16_t* out) {
  const int32_t width = to.border[to.count];
  x += static_cast<size_t>(blockIdx.x) * from.border[from.count];
  out += static_cast<size_t>(blockIdx.x) * width;
  for (int32_t i = threadIdx.x; i < width; i += kRowThreads) {
    int32_t shard = 0;
    while (to.border[shard + 1] <= i) ++shard;
    const int32_t source = from.border[shard] + i - to.border[shard];
    out[i] = source < from.border[shard + 1] ? x[source] : uint16_t{0};
  }
}

/// Grid: [rows]. Each thread adds some features of a row.
__global__ void __launch_bounds__(kRowThreads)
    add_sums_kernel(const float* sums, const float* bias, int32_t width, float* hidden) {
  const size_t row = static_cast<size_t>(blockIdx.x) * width;
  for (int32_t i = threadIdx.x; i < width; i += kRowThreads) {
    hidden[row + i] += bias != nullptr ? sums[row + i] + bias[i] : sums[row + i];
  }
}

}  // namespace

void run_bf16_shards(cudaStream_t stream, const GemmParams& product, MatrixInstruction by) {
  if (takes_wide(product, by)) return run_wide<true>(stream, product);
  with_tiling(by, tile_tokens(product.rows), [&](auto tiling) {
    using T = decltype(tiling);
    launch_tiles<sharded_gemm_kernel<T>, T>("sharded_product", stream, product);
  });
}

size_t sharded_workspace_bytes(const DeviceWeight& weight, int32_t rows) {
  return split_workspace_bytes(weight.shards.count, panel_count(weight.out_features, false), rows);
}

void sharded_matmul(cudaStream_t stream, const void* x, const DeviceWeight& weight, const float* bias, int32_t rows,
                    void* out, OutputType type, void* workspace) {
  run_sharded(stream, x, weight, bias, rows, out, type == OutputType::kF32 ? Epilogue::kStoreF32 : Epilogue::kStoreBf16,
              workspace);
}

void sharded_matmul_add(cudaStream_t stream, const void* x, const DeviceWeight& weight, const float* bias, int32_t rows,
                        float* hidden, void* workspace) {
  run_sharded(stream, x, weight, bias, rows, hidden, Epilogue::kAddF32, workspace);
}

void spread_shards(cudaStream_t stream, const void* x, const DeviceShards& from, const DeviceShards& to, int32_t rows,
                   void* out) {
  launch<spread_shards_kernel>({"spread_shards", dim3(rows), dim3(kRowThreads)}, stream,
                               static_cast<const uint16_t*>(x), from, to, static_cast<uint16_t*>(out));
}

void add_sums(cudaStream_t stream, const float* sums, const float* bias, int32_t rows, int32_t width, float* hidden) {
  launch<add_sums_kernel>({"add_sums", dim3(rows), dim3(kRowThreads)}, stream, sums, bias, width, hidden);
}

}  // namespace millrace::cuda
