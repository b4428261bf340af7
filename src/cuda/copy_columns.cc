#include "cuda/copy_columns.h"

#include "cuda/error.h"

namespace millrace::cuda {

void copy_columns(cudaStream_t stream, tensor::Matrix in, int64_t in_begin, tensor::Matrix out, int64_t out_begin,
                  int64_t cols) {
  if (in.rows == 0 || cols == 0) return;
  const size_t element = size_of(in.dtype);
  const auto bytes = [element](int64_t count) { return static_cast<size_t>(count) * element; };
  check(cudaMemcpy2DAsync(out.data + bytes(out_begin), bytes(out.cols), in.data + bytes(in_begin), bytes(in.cols),
                          bytes(cols), static_cast<size_t>(in.rows), cudaMemcpyDeviceToDevice, stream),
        "cudaMemcpy2DAsync");
}

}  // namespace millrace::cuda
