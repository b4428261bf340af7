#include "cuda/elementwise.cuh"
#include "cuda/mma.cuh"
#include "cuda/row_kernels.h"

namespace millrace::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWide = 8;  // elements of a 16-byte load

__global__ void __launch_bounds__(kThreads)
    embed_kernel(const uint16_t* table, int32_t vocab, int32_t width, const int32_t* tokens, float* hidden) {
  const int32_t token = tokens[blockIdx.x];
  const bool known = token >= 0 && token < vocab;
  const uint16_t* from = table + (known ? static_cast<size_t>(token) * width : 0);
  float* to = hidden + static_cast<size_t>(blockIdx.x) * width;
  if (width % kWide != 0) {
    for (int32_t i = threadIdx.x; i < width; i += kThreads) to[i] = known ? bf16_to_float(from[i]) : 0.0f;
    return;
  }
  for (int32_t i = threadIdx.x * kWide; i < width; i += kThreads * kWide) {
    const uint4 words = known ? *reinterpret_cast<const uint4*>(from + i) : uint4{};
    const uint32_t pairs[] = {words.x, words.y, words.z, words.w};
    for (int half = 0; half < 2; ++half) {
      const uint32_t a = pairs[half * 2];
      const uint32_t b = pairs[half * 2 + 1];
      *reinterpret_cast<float4*>(to + i + half * 4) =
          float4{bf16_to_float(static_cast<uint16_t>(a)), bf16_to_float(static_cast<uint16_t>(a >> 16)),
                 bf16_to_float(static_cast<uint16_t>(b)), bf16_to_float(static_cast<uint16_t>(b >> 16))};
    }
  }
}

struct AddEmbedding {
  const uint16_t* table;
  int32_t vocab;
  int32_t width;
  const int32_t* indices;
  float* hidden;
  __device__ void operator()(size_t row, int32_t column) const {
    const int32_t index = indices[row];
    if (index < 0 || index >= vocab) return;
    hidden[row * width + column] += bf16_to_float(table[static_cast<size_t>(index) * width + column]);
  }
};

}  // namespace

void embed(cudaStream_t stream, const void* table, int32_t vocab, int32_t width, const int32_t* tokens, int32_t rows,
           float* hidden) {
  launch<embed_kernel>({"embed", dim3(rows), dim3(kThreads)}, stream, static_cast<const uint16_t*>(table), vocab, width,
                       tokens, hidden);
}

void add_embedding(cudaStream_t stream, const void* table, int32_t vocab, int32_t width, const int32_t* indices,
                   int32_t rows, float* hidden) {
  launch_elements("add_embedding", stream, rows, width,
                  AddEmbedding{.table = static_cast<const uint16_t*>(table),
                               .vocab = vocab,
                               .width = width,
                               .indices = indices,
                               .hidden = hidden});
}

}  // namespace millrace::cuda
