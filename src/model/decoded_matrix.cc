#include "model/decoded_matrix.h"

#include <algorithm>
#include <atomic>
#include <thread>

namespace millrace::model {
namespace {

/// Calls body(begin, end) for blocks of `count` rows, on several threads.
template <class Body>
void for_row_blocks(int64_t count, int32_t threads, const Body& body) {
  std::atomic<int64_t> next = 0;
  const auto work = [&] {
    for (int64_t begin; (begin = next.fetch_add(weights::kDecodeRows)) < count;)
      body(begin, std::min(count, begin + weights::kDecodeRows));
  };
  const int64_t blocks = (count + weights::kDecodeRows - 1) / weights::kDecodeRows;
  const int64_t wanted = threads > 0 ? threads : static_cast<int64_t>(std::thread::hardware_concurrency());
  std::vector<std::jthread> helpers;
  for (int64_t i = 1; i < std::min(wanted, blocks); ++i) helpers.emplace_back(work);
  work();
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
