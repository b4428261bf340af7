#include "cuda/kernels.h"
#include "cuda/mma.cuh"

namespace millrace::cuda {
namespace {

constexpr int kThreads = 256;

/// Copies row by row in pieces of type T.
template <class T>
__device__ void copy_row(const std::byte* in, bool known, size_t bytes, std::byte* out) {
  for (size_t i = threadIdx.x; i < bytes / sizeof(T); i += kThreads) {
    reinterpret_cast<T*>(out)[i] = known ? reinterpret_cast<const T*>(in)[i] : T{};
  }
}

__global__ void __launch_bounds__(kThreads, 4)
    gather_rows_kernel(const std::byte* in, size_t row_bytes, const int32_t* rows, std::byte* out) {
  const int32_t row = rows[blockIdx.x];
  const std::byte* from = in + (row < 0 ? 0 : static_cast<size_t>(row) * row_bytes);
  std::byte* to = out + static_cast<size_t>(blockIdx.x) * row_bytes;
  if (row_bytes % sizeof(uint4) == 0) {
    copy_row<uint4>(from, row >= 0, row_bytes, to);
  } else {
    copy_row<uint16_t>(from, row >= 0, row_bytes, to);
  }
}

}  // namespace

void gather_rows(cudaStream_t stream, const void* in, size_t row_bytes, const int32_t* rows, int32_t count, void* out) {
  if (row_bytes % sizeof(uint16_t) != 0) {
    throw std::invalid_argument("gather_rows: rows of " + std::to_string(row_bytes) + " bytes, wanted an even number");
  }
  launch<gather_rows_kernel>({"gather_rows", dim3(count), dim3(kThreads)}, stream, static_cast<const std::byte*>(in),
                             row_bytes, rows, static_cast<std::byte*>(out));
}

}  // namespace millrace::cuda
