#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace millrace::tensor {

/// A borrowed dense row-major matrix on the device.
struct Matrix {
  std::byte* data = nullptr;  // [rows, cols]
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  [[nodiscard]] size_t bytes() const { return static_cast<size_t>(rows * cols) * size_of(dtype); }
};

/// A borrowed dense row-major matrix of integers on the device.
struct IntMatrix {
  int32_t* data = nullptr;  // [rows, cols]
  int64_t rows = 0;
  int64_t cols = 0;
  [[nodiscard]] size_t bytes() const { return static_cast<size_t>(rows * cols) * sizeof(int32_t); }
};

}  // namespace millrace::tensor
