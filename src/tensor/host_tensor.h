#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "tensor/dtype.h"

namespace millrace::tensor {

/// The dimensions of a dense row-major tensor, at most four.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims);
  explicit Shape(std::span<const int64_t> dims);
  [[nodiscard]] size_t rank() const { return rank_; }
  [[nodiscard]] int64_t operator[](size_t axis) const { return dims_[axis]; }
  [[nodiscard]] int64_t elements() const;
  [[nodiscard]] std::string to_string() const;  ///< e.g. "[896, 4864]"
  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<int64_t, 4> dims_{};
  size_t rank_ = 0;
};

/// A named tensor of a checkpoint in host memory, usually in a mapped file, borrowed from the owner of the memory.
struct HostTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  const std::byte* data = nullptr;  // dense, row-major; may be unaligned for its dtype
  [[nodiscard]] size_t bytes() const { return static_cast<size_t>(shape.elements()) * size_of(dtype); }
};

/// Reads `count` elements from element `first` on as f32 into `out`.
void read_floats(const HostTensor& tensor, int64_t first, int64_t count, float* out);

}  // namespace millrace::tensor
