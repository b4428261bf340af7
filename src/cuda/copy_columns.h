#pragma once

#include <cuda_runtime_api.h>

#include "tensor/backend.h"

namespace millrace::cuda {

/// Implements Backend::copy_columns by one copy with pitches, which a graph can capture.
void copy_columns(cudaStream_t stream, tensor::Matrix in, int64_t in_begin, tensor::Matrix out, int64_t out_begin,
                  int64_t cols);

}  // namespace millrace::cuda
