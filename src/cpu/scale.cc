#include <cstdint>

#include "cpu/ops.h"

namespace millrace::cpu {

void scale(Device& device, tensor::Matrix matrix, float factor) {
  check_matrix("matrix", matrix, tensor::DType::kF32, matrix.rows, matrix.cols);
  device.pool.run_ranges(matrix.rows, [&](int64_t begin, int64_t end, int) {
    auto* values = row_of<float>(matrix, begin);
    for (int64_t i = 0; i < (end - begin) * matrix.cols; ++i) values[i] *= factor;
  });
}

void soft_cap(Device& device, tensor::Matrix matrix, float cap) {
  check_matrix("matrix", matrix, tensor::DType::kF32, matrix.rows, matrix.cols);
  device.pool.run_ranges(matrix.rows, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) device.kernels.soft_cap(row_of<float>(matrix, row), cap, matrix.cols);
  });
}

}  // namespace millrace::cpu
