#include "tensor/host_tensor.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace millrace::tensor {
namespace {

template <class Element>
void convert(const std::byte* from, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    Element element;
    std::memcpy(&element, from + static_cast<size_t>(i) * sizeof element, sizeof element);
    out[i] = element.to_float();
  }
}

}  // namespace

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

void read_floats(const HostTensor& tensor, int64_t first, int64_t count, float* out) {
  const std::byte* from = tensor.data + static_cast<size_t>(first) * size_of(tensor.dtype);
  switch (tensor.dtype) {
    case DType::kF32: std::memcpy(out, from, static_cast<size_t>(count) * sizeof(float)); break;
    case DType::kBF16: convert<BFloat16>(from, count, out); break;
    case DType::kF16: convert<Float16>(from, count, out); break;
  }
}

}  // namespace millrace::tensor
