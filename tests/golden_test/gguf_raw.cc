#include "golden_test/gguf_raw.h"

#include <cstring>
#include <stdexcept>

namespace millrace::test {

RawTensor to_f32(const RawTensor& tensor) {
  if (tensor.dtype == "F32") return tensor;
  RawTensor wide{.dtype = "F32", .shape = tensor.shape, .bytes = {}};
  if (tensor.dtype != "BF16") throw std::runtime_error("dtype " + tensor.dtype);
  for (size_t at = 0; at < tensor.bytes.size(); at += 2)
    wide.bytes += std::string(2, '\0') + tensor.bytes.substr(at, 2);
  return wide;
}

RawTensor rows_of(const RawTensor& tensor, int64_t first, int64_t count, int64_t step) {
  RawTensor part{.dtype = tensor.dtype, .shape = tensor.shape, .bytes = {}};
  part.shape[1] = count;
  const size_t row = tensor.row_bytes() / static_cast<size_t>(tensor.shape[1]);
  for (int64_t plane = 0; plane < tensor.shape[0]; ++plane) {
    for (int64_t i = 0; i < count; ++i)
      part.bytes += tensor.bytes.substr(static_cast<size_t>(plane * tensor.shape[1] + first + i * step) * row, row);
  }
  return part;
}

RawTensor transposed(const RawTensor& tensor) {
  const int64_t planes = tensor.shape[0];
  const int64_t rows = tensor.shape[1];
  const int64_t cols = tensor.shape[2];
  RawTensor turned{.dtype = tensor.dtype, .shape = {planes, cols, rows}, .bytes = {}};
  for (int64_t plane = 0; plane < planes; ++plane) {
    for (int64_t col = 0; col < cols; ++col) {
      for (int64_t row = 0; row < rows; ++row)
        turned.bytes += tensor.bytes.substr(static_cast<size_t>((plane * rows + row) * cols + col) * 2, 2);
    }
  }
  return turned;
}

RawTensor paired(const RawTensor& tensor, int64_t heads) {
  RawTensor rows{.dtype = tensor.dtype, .shape = tensor.shape, .bytes = {}};
  const int64_t head = tensor.shape[0] / heads;
  for (int64_t row = 0; row < tensor.shape[0]; ++row) {
    const int64_t in_head = row % head;
    const int64_t source = row - in_head + in_head / 2 + in_head % 2 * head / 2;
    rows.bytes += tensor.bytes.substr(static_cast<size_t>(source) * tensor.row_bytes(), tensor.row_bytes());
  }
  return rows;
}

RawTensor mxfp4_blocks(const RawTensor& codes, const RawTensor& scales) {
  constexpr size_t kBytes = 16;
  RawTensor blocks{.dtype = "MXFP4", .shape = {codes.shape[0], codes.shape[1], codes.shape[2] * 32}, .bytes = {}};
  for (size_t block = 0; block < scales.bytes.size(); ++block) {
    blocks.bytes += scales.bytes[block];
    const auto code = [&](size_t i) {
      const auto byte = static_cast<uint8_t>(codes.bytes[block * kBytes + i / 2]);
      return i % 2 == 0 ? byte & 15 : byte >> 4;
    };
    for (size_t i = 0; i < kBytes; ++i) blocks.bytes += static_cast<char>(code(i) | code(i + kBytes) << 4);
  }
  return blocks;
}

RawTensor stack_of(const std::map<int64_t, RawTensor>& parts) {
  RawTensor stack = parts.begin()->second;
  stack.shape.insert(stack.shape.begin(), static_cast<int64_t>(parts.size()));
  stack.bytes.clear();
  for (const auto& [number, part] : parts) stack.bytes += part.bytes;
  return stack;
}

RawTensor ordered_rows(const RawTensor& tensor, const weights::StoredOrder& order) {
  RawTensor rows = tensor;
  const size_t bytes = tensor.row_bytes();
  for (int64_t row = 0; row < tensor.shape[0]; ++row)
    rows.bytes.replace(static_cast<size_t>(order.stored(row)) * bytes, bytes, tensor.bytes,
                       static_cast<size_t>(row) * bytes, bytes);
  return rows;
}

RawTensor ordered_columns(const RawTensor& tensor, const weights::StoredOrder& order) {
  RawTensor columns = tensor;
  const size_t bytes = tensor.row_bytes() / static_cast<size_t>(tensor.shape[1]);
  for (int64_t row = 0; row < tensor.shape[0]; ++row) {
    const size_t begin = static_cast<size_t>(row) * tensor.row_bytes();
    for (int64_t column = 0; column < tensor.shape[1]; ++column)
      columns.bytes.replace(begin + static_cast<size_t>(order.stored(column)) * bytes, bytes, tensor.bytes,
                            begin + static_cast<size_t>(column) * bytes, bytes);
  }
  return columns;
}

RawTensor scaled_rows(const RawTensor& tensor, int64_t first, int64_t count, float factor) {
  RawTensor scaled = to_f32(tensor);
  const auto columns = static_cast<int64_t>(scaled.row_bytes() / sizeof(float));
  for (int64_t i = first * columns; i < (first + count) * columns; ++i) {
    float value = 0;
    char* const at = scaled.bytes.data() + static_cast<size_t>(i) * sizeof value;
    std::memcpy(&value, at, sizeof value);
    value *= factor;
    std::memcpy(at, &value, sizeof value);
  }
  return scaled;
}

}  // namespace millrace::test
