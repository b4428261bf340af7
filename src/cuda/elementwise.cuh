#pragma once

#include "cuda/launch.h"

/// Ops that compute each element of a matrix by itself.
namespace millrace::cuda {

constexpr int kEachThreads = 256;
constexpr int kEachColumns = 4 * kEachThreads;  ///< of a block

/// Grid: [rows, blocks of columns]. Calls f(row, column) for all elements.
template <class F>
__global__ void __launch_bounds__(kEachThreads) each_element_kernel(F f, int32_t cols) {
  const auto row = static_cast<size_t>(blockIdx.x);
  const int32_t first = static_cast<int32_t>(blockIdx.y) * kEachColumns;
  const int32_t end = min(first + kEachColumns, cols);
  for (int32_t column = first + static_cast<int32_t>(threadIdx.x); column < end; column += kEachThreads) f(row, column);
}

template <class F>
void launch_elements(const char* name, cudaStream_t stream, int32_t rows, int32_t cols, const F& f) {
  launch<each_element_kernel<F>>({name, dim3(rows, ceil_div(cols, kEachColumns)), dim3(kEachThreads)}, stream, f, cols);
}

}  // namespace millrace::cuda
