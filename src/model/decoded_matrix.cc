#include "model/decoded_matrix.h"

#include <algorithm>

#include "base/parallel_for.h"

namespace millrace::model {
namespace {

template <class Body>
void for_row_blocks(int64_t count, int32_t threads, const Body& body) {
  parallel_for({.count = count, .block = weights::kDecodeRows, .threads = threads, .thread_name = "decode"}, body);
}

}  // namespace

DecodedMatrix::DecodedMatrix(const weights::StoredWeight& weight, tensor::TermRange rows, bool to_bf16, int32_t threads)
    : name_(weight.name), shape_{rows.size(), weight.cols} {
  const auto elements = static_cast<size_t>(shape_.elements());
  if (!to_bf16) {
    floats_.resize(elements);
    for_row_blocks(rows.size(), threads, [&](int64_t begin, int64_t end) {
      weights::decode_rows(weight, rows.begin + begin, end - begin, floats_.data() + begin * weight.cols);
    });
    return;
  }
  rounded_.resize(elements);
  for_row_blocks(rows.size(), threads, [&](int64_t begin, int64_t end) {
    std::vector<float> block(static_cast<size_t>((end - begin) * weight.cols));
    weights::decode_rows(weight, rows.begin + begin, end - begin, block.data());
    std::ranges::transform(block, rounded_.begin() + begin * weight.cols, tensor::BFloat16::from_float);
  });
}

tensor::HostTensor DecodedMatrix::view() const {
  const bool is_rounded = floats_.empty();
  return {.name = name_,
          .dtype = is_rounded ? tensor::DType::kBF16 : tensor::DType::kF32,
          .shape = shape_,
          .data = is_rounded ? reinterpret_cast<const std::byte*>(rounded_.data())
                             : reinterpret_cast<const std::byte*>(floats_.data())};
}

}  // namespace millrace::model
