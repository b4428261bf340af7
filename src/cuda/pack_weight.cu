#include "cuda/mma.cuh"
#include "cuda/packed_weight.h"

namespace millrace::cuda {
namespace {

constexpr int kThreads = 256;

__device__ uint16_t read_as_bf16(const void* source, SourceType type, size_t at) {
  switch (type) {
    case SourceType::kF32: return float_to_bf16(static_cast<const float*>(source)[at]);
    case SourceType::kBF16: return static_cast<const uint16_t*>(source)[at];
    case SourceType::kF16: return float_to_bf16(binary16_to_float(static_cast<const uint16_t*>(source)[at]));
  }
  return 0;
}

/// Returns the element index in the packed matrix.
__device__ size_t packed_index(int32_t row, int32_t input, int32_t steps) {
  const size_t step = static_cast<size_t>(row / kPanelRows) * steps + input / kStepInputs;
  const int32_t offset = chunk_offset(row % kPanelRows, input % kStepInputs / 8);
  return step * (kPanelStepBytes / 2) + offset / 2 + input % 8;
}

__global__ void __launch_bounds__(kThreads) pack_weight_kernel(const void* source, SourceType type, int32_t in_features,
                                                               int32_t first_feature, PackAs as, uint16_t* packed) {
  const int32_t feature = first_feature + static_cast<int32_t>(blockIdx.x);
  int32_t row = feature;
  if (as != PackAs::kRows) row = feature / 8 * 16 + feature % 8 + (as == PackAs::kUp ? 8 : 0);
  const int32_t steps = ceil_div(in_features, kStepInputs);
  for (int32_t input = threadIdx.x; input < in_features; input += kThreads) {
    packed[packed_index(row, input, steps)] =
        read_as_bf16(source, type, static_cast<size_t>(blockIdx.x) * in_features + input);
  }
}

__global__ void __launch_bounds__(kThreads)
    convert_kernel(const void* source, SourceType type, size_t count, uint16_t* bf16) {
  const size_t stride = static_cast<size_t>(gridDim.x) * kThreads;
  for (size_t i = static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += stride) {
    bf16[i] = read_as_bf16(source, type, i);
  }
}

}  // namespace

size_t packed_weight_bytes(int32_t out_features, int32_t in_features, bool gate_up) {
  return static_cast<size_t>(panel_count(out_features, gate_up)) * static_cast<size_t>(step_count(in_features)) *
         kPanelStepBytes;
}

void pack_weight(cudaStream_t stream, const void* source, SourceType type, int32_t rows, int32_t in_features,
                 int32_t first_feature, PackAs as, void* packed) {
  launch<pack_weight_kernel>({"pack_weight", dim3(rows), dim3(kThreads)}, stream, source, type, in_features,
                             first_feature, as, static_cast<uint16_t*>(packed));
}

void convert_to_bf16(cudaStream_t stream, const void* source, SourceType type, size_t count, void* bf16) {
  constexpr size_t kMaxBlocks = 65536;
  const size_t blocks = (count + kThreads - 1) / kThreads;
  launch<convert_kernel>(
      {"convert_to_bf16", dim3(static_cast<uint32_t>(blocks < kMaxBlocks ? blocks : kMaxBlocks)), dim3(kThreads)},
      stream, source, type, count, static_cast<uint16_t*>(bf16));
}

}  // namespace millrace::cuda
