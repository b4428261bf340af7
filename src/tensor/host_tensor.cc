#include "tensor/host_tensor.h"

#include <algorithm>

#include "base/check.h"

namespace millrace::tensor {

Shape::Shape(std::initializer_list<int64_t> dims) : Shape(std::span(dims.begin(), dims.size())) {}

Shape::Shape(std::span<const int64_t> dims) : rank_(dims.size()) {
  CHECK(dims.size() <= dims_.size(), "a tensor of rank {}, at most 4 is known", dims.size());
  std::copy(dims.begin(), dims.end(), dims_.begin());
}

int64_t Shape::elements() const {
  int64_t count = 1;
  for (size_t axis = 0; axis < rank_; ++axis) count *= dims_[axis];
  return count;
}

std::string Shape::to_string() const {
  std::string text = "[";
  for (size_t axis = 0; axis < rank_; ++axis) {
    if (axis != 0) text += ", ";
    text += std::to_string(dims_[axis]);
  }
  return text + "]";
}

}  // namespace millrace::tensor
