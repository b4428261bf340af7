#include "tensor/slices.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace millrace::tensor {
namespace {

/// Copies bytes [begin, begin + count) of each of some rows, `stride` bytes apart.
std::vector<std::byte> copy_columns(const std::byte* rows, int64_t row_count, size_t stride, size_t begin,
                                    size_t count) {
  std::vector<std::byte> copy(static_cast<size_t>(row_count) * count);
  for (size_t row = 0; row < static_cast<size_t>(row_count) && count > 0; ++row)
    std::memcpy(copy.data() + row * count, rows + row * stride + begin, count);
  return copy;
}

/// Copies rows [first, first + count) of `row_count`, with zeros for those that do not exist.
std::vector<std::byte> copy_rows(const std::byte* rows, int64_t row_count, size_t row_bytes, int64_t first,
                                 int64_t count) {
  std::vector<std::byte> copy(static_cast<size_t>(count) * row_bytes);
  const auto there = static_cast<size_t>(std::clamp<int64_t>(row_count - first, 0, count));
  if (there * row_bytes > 0) std::memcpy(copy.data(), rows + static_cast<size_t>(first) * row_bytes, there * row_bytes);
  return copy;
}

/// Copies rows by their numbers.
std::vector<std::byte> copy_rows(const std::byte* rows, int64_t row_count, size_t row_bytes,
                                 std::span<const int64_t> numbers) {
  std::vector<std::byte> copy(numbers.size() * row_bytes);
  for (size_t i = 0; i < numbers.size(); ++i) {
    CHECK(numbers[i] >= 0 && numbers[i] < row_count, "row {} of {}", numbers[i], row_count);
    std::memcpy(copy.data() + i * row_bytes, rows + static_cast<size_t>(numbers[i]) * row_bytes, row_bytes);
  }
  return copy;
}

void check_rows(const std::string& name, TermRange rows, int64_t count) {
  CHECK(0 <= rows.begin && rows.begin <= rows.end && rows.end <= count, "{}: rows [{}, {}) of {}", name, rows.begin,
        rows.end, count);
}

void check_columns(const std::string& name, TermRange cols, int64_t count) {
  CHECK(0 <= cols.begin && cols.begin <= cols.end && cols.end <= count, "{}: columns [{}, {}) of {}", name, cols.begin,
        cols.end, count);
}

size_t row_bytes(const HostTensor& matrix) {
  CHECK(matrix.shape.rank() == 2, "{}: {} is not a matrix", matrix.name, matrix.shape.to_string());
  return static_cast<size_t>(matrix.shape[1]) * size_of(matrix.dtype);
}

size_t scale_row_bytes(const W8Matrix& matrix) {
  return static_cast<size_t>(matrix.groups()) * size_of(matrix.scale_dtype);
}

HostSlice make_slice(const HostTensor& matrix, Shape shape, std::vector<std::byte> bytes) {
  HostSlice slice{.bytes = std::move(bytes), .tensor = matrix};
  slice.tensor.shape = shape;
  slice.tensor.data = slice.bytes.data();
  return slice;
}

W8Slice make_slice(const W8Matrix& matrix, int64_t rows, int64_t cols, std::vector<std::byte> values,
                   std::vector<std::byte> scales) {
  W8Slice slice{.values = std::move(values), .scales = std::move(scales), .matrix = matrix};
  slice.matrix.rows = rows;
  slice.matrix.cols = cols;
  slice.matrix.values = slice.values.data();
  slice.matrix.scales = slice.scales.data();
  return slice;
}

}  // namespace

HostTensor row_slice(const HostTensor& matrix, TermRange rows) {
  check_rows(matrix.name, rows, matrix.shape[0]);
  HostTensor slice = matrix;
  slice.data += static_cast<size_t>(rows.begin) * row_bytes(matrix);
  slice.shape = {rows.size(), matrix.shape[1]};
  return slice;
}

W8Matrix row_slice(const W8Matrix& matrix, TermRange rows) {
  check_rows(matrix.name, rows, matrix.rows);
  W8Matrix slice = matrix;
  slice.values += rows.begin * matrix.cols;
  slice.scales += static_cast<size_t>(rows.begin) * scale_row_bytes(matrix);
  slice.rows = rows.size();
  return slice;
}

HostSlice padded_rows(const HostTensor& matrix, int64_t first, int64_t count) {
  return make_slice(matrix, {count, matrix.shape[1]},
                    copy_rows(matrix.data, matrix.shape[0], row_bytes(matrix), first, count));
}

W8Slice padded_rows(const W8Matrix& matrix, int64_t first, int64_t count) {
  return make_slice(matrix, count, matrix.cols,
                    copy_rows(matrix.values, matrix.rows, static_cast<size_t>(matrix.cols), first, count),
                    copy_rows(matrix.scales, matrix.rows, scale_row_bytes(matrix), first, count));
}

HostSlice column_slice(const HostTensor& matrix, TermRange cols) {
  check_columns(matrix.name, cols, matrix.shape[1]);
  const size_t size = size_of(matrix.dtype);
  return make_slice(matrix, {matrix.shape[0], cols.size()},
                    copy_columns(matrix.data, matrix.shape[0], row_bytes(matrix),
                                 static_cast<size_t>(cols.begin) * size, static_cast<size_t>(cols.size()) * size));
}

W8Slice column_slice(const W8Matrix& matrix, TermRange cols) {
  check_columns(matrix.name, cols, matrix.cols);
  CHECK(matrix.per_channel_scales || cols.begin % kW8Group == 0, "{}: columns from {} on begin inside a group of {}",
        matrix.name, cols.begin, kW8Group);
  const TermRange groups =
      matrix.per_channel_scales ? TermRange{0, 1} : TermRange{cols.begin / kW8Group, w8_groups(cols.end)};
  const size_t size = size_of(matrix.scale_dtype);
  return make_slice(matrix, matrix.rows, cols.size(),
                    copy_columns(matrix.values, matrix.rows, static_cast<size_t>(matrix.cols),
                                 static_cast<size_t>(cols.begin), static_cast<size_t>(cols.size())),
                    copy_columns(matrix.scales, matrix.rows, scale_row_bytes(matrix),
                                 static_cast<size_t>(groups.begin) * size, static_cast<size_t>(groups.size()) * size));
}

HostSlice gather_rows(const HostTensor& matrix, std::span<const int64_t> rows) {
  return make_slice(matrix, {static_cast<int64_t>(rows.size()), matrix.shape[1]},
                    copy_rows(matrix.data, matrix.shape[0], row_bytes(matrix), rows));
}

W8Slice gather_rows(const W8Matrix& matrix, std::span<const int64_t> rows) {
  return make_slice(matrix, static_cast<int64_t>(rows.size()), matrix.cols,
                    copy_rows(matrix.values, matrix.rows, static_cast<size_t>(matrix.cols), rows),
                    copy_rows(matrix.scales, matrix.rows, scale_row_bytes(matrix), rows));
}

HostSlice columns_as_rows(const HostTensor& matrix, int64_t first, int64_t step, int64_t count) {
  check_columns(matrix.name, {first, first + (count - 1) * step + 1}, matrix.shape[1]);
  const size_t size = size_of(matrix.dtype);
  const auto height = static_cast<size_t>(matrix.shape[0]);
  std::vector<std::byte> bytes(static_cast<size_t>(count) * height * size);
  for (size_t column = 0; column < height; ++column) {
    const std::byte* from = matrix.data + column * row_bytes(matrix) + static_cast<size_t>(first) * size;
    for (size_t row = 0; row < static_cast<size_t>(count); ++row)
      std::memcpy(bytes.data() + (row * height + column) * size, from + row * static_cast<size_t>(step) * size, size);
  }
  return make_slice(matrix, {count, matrix.shape[0]}, std::move(bytes));
}

}  // namespace millrace::tensor
