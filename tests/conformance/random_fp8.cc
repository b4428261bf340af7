#include "conformance/random_fp8.h"

#include <algorithm>
#include <cmath>

namespace millrace::test {
namespace {

std::byte nearest_e4m3(float value) {
  const auto finite = std::span(tensor::kE4M3).first(0x7F);
  const float magnitude = std::min(std::abs(value), finite.back());
  const auto above = std::ranges::lower_bound(finite, magnitude);
  const bool takes_below = above != finite.begin() && magnitude - above[-1] < *above - magnitude;
  const auto code = static_cast<uint8_t>(above - finite.begin() - (takes_below ? 1 : 0));
  return std::byte{static_cast<uint8_t>(code | (value < 0 ? 0x80 : 0))};
}

}  // namespace

Fp8Storage rounded_to_fp8(const tensor::HostTensor& matrix, Fp8Block block) {
  const Values values = reference::to_floats(matrix);
  const int64_t rows = matrix.shape[0];
  const int64_t cols = matrix.shape[1];
  Fp8Storage storage{.codes = std::vector<std::byte>(values.size()), .matrix = {}};
  tensor::Fp8Matrix& view = storage.matrix;
  view = {.name = "fp8", .rows = rows, .cols = cols, .codes = storage.codes.data(), .row_bytes = cols, .scales = {}};
  view.block_rows = block.rows > 0 ? block.rows : std::max<int64_t>(rows, 1);
  view.block_cols = block.cols > 0 ? block.cols : cols;
  view.column_blocks = (cols + view.block_cols - 1) / view.block_cols;
  view.scales.resize(static_cast<size_t>((rows + view.block_rows - 1) / view.block_rows * view.column_blocks));
  const auto scale_of = [&view](int64_t row, int64_t col) -> float& {
    return view.scales[static_cast<size_t>(row / view.block_rows * view.column_blocks + col / view.block_cols)];
  };
  for (int64_t i = 0; i < rows * cols; ++i) {
    float& scale = scale_of(i / cols, i % cols);
    scale = std::max(scale, std::abs(values[static_cast<size_t>(i)]) / 440.0f);
  }
  for (int64_t i = 0; i < rows * cols; ++i)
    storage.codes[static_cast<size_t>(i)] = nearest_e4m3(values[static_cast<size_t>(i)] / scale_of(i / cols, i % cols));
  return storage;
}

}  // namespace millrace::test
