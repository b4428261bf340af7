#include "cpu/transposed_codes.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "cpu/device.h"

namespace millrace::cpu {
namespace {

using tensor::BFloat16;
using tensor::CodeMatrix;
using tensor::CodeOffsets;
using tensor::CodeStorage;
using tensor::CodeValues;

constexpr int kSignedByteOffset = 128;  // of signed integers that are stored as bytes
constexpr int kSignedNibbleOffset = 8;
/// The most bits per weight, zeros of the strides included, for which codes take the place of bf16.
constexpr int64_t kMaxBits = 11;

/// Returns the rows of the transpose that share factors.
int64_t group_rows(const CodeMatrix& kv_b) {
  return kv_b.groups() == 1 ? kv_b.cols : kv_b.group;
}

/// Returns the bits of codes in panels that hold integers less their zero points.
int64_t transposed_bits(const CodeMatrix& kv_b) {
  const int stored = kv_b.bits == 4 ? 4 : kv_b.integer_bits;
  const int bits = kv_b.offsets == CodeOffsets::kZeroPoints ? stored + 1 : stored;
  return bits <= 6 ? bits : 8;
}

/// Returns whether codes are those of a table, which the transpose keeps.
bool has_table(const CodeMatrix& matrix) {
  return matrix.values != CodeValues::kInteger;
}

/// Returns the integers of one row, less their zero points; the codes of a table.
void read_row(const CodeMatrix& matrix, int64_t row, std::span<int8_t> out) {
  const int shared = matrix.bits == 4 ? kSignedNibbleOffset : kSignedByteOffset;
  for (int64_t col = 0; col < matrix.cols; ++col) {
    const int code = matrix.code(row, col);
    const int zero = has_table(matrix) ? 0
                     : matrix.offsets == CodeOffsets::kZeroPoints
                         ? matrix.zero_points[row * matrix.groups() + col / matrix.group]
                         : shared;
    const int integer = code - zero;
    CHECK(integer >= -kSignedByteOffset && integer < kSignedByteOffset,
          "{}: the code {} less its zero point {} is no byte", matrix.name, code, zero);
    out[static_cast<size_t>(col)] = static_cast<int8_t>(integer);
  }
}

/// Sets the codes of a transpose to hold integers from `least` to `most`.
void choose_codes(int least, int most, CodeStorage& storage) {
  if (least >= -kSignedNibbleOffset && most < kSignedNibbleOffset) return;
  storage.bits = 8;
  storage.integer_bits = least >= -16 && most < 16 ? 5 : least >= -32 && most < 32 ? 6 : 8;
}

/// Writes a code of a storage whose codes were zeros.
void write_code(CodeStorage& storage, int64_t row_bytes, int64_t row, int64_t col, uint8_t code) {
  uint8_t* const codes = storage.codes.data() + row * row_bytes;
  if (storage.bits == 8) {
    codes[col] = code;
  } else {
    codes[col / 2] = static_cast<uint8_t>(codes[col / 2] | code << (col % 2 * 4));
  }
}

/// Returns the rows of the transpose from one group to the next: whole panels.
int64_t transposed_stride(const CodeMatrix& kv_b) {
  return round_up(group_rows(kv_b), kPanelColumns);
}

}  // namespace

bool can_transpose_codes(const CodeMatrix& kv_b) {
  const bool has_factors = kv_b.unit_scales != nullptr || kv_b.half_scales != nullptr;
  if (has_factors || kv_b.offsets == CodeOffsets::kMinimums) return false;
  if (kv_b.offsets == CodeOffsets::kZeroPoints && kv_b.bits == 8 && kv_b.integer_bits > 7) return false;
  const int64_t group = group_rows(kv_b);
  return kv_b.cols % group == 0 && transposed_bits(kv_b) * transposed_stride(kv_b) <= kMaxBits * group;
}

TransposedCodes transposed_codes(const CodeMatrix& keys) {
  CHECK(can_transpose_codes(keys) && keys.first_col == 0, "{}: codes cannot be transposed", keys.name);
  std::vector<int8_t> integers(static_cast<size_t>(keys.rows * keys.cols));
  for (int64_t row = 0; row < keys.rows; ++row)
    read_row(keys, row,
             std::span(integers).subspan(static_cast<size_t>(row * keys.cols), static_cast<size_t>(keys.cols)));
  const int64_t group = group_rows(keys);
  const int64_t stride = transposed_stride(keys);
  TransposedCodes transposed{.codes = {.name = keys.name,
                                       .rows = keys.groups() * stride,
                                       .cols = keys.rows,
                                       .values = keys.values,
                                       .group = round_up(keys.rows, tensor::kCodeUnit)},
                             .factors = {}};
  CodeStorage& codes = transposed.codes;
  if (!has_table(keys)) {
    const auto [least, most] = std::ranges::minmax_element(integers);
    choose_codes(*least, *most, codes);
  }
  const int offset = has_table(keys) ? 0 : codes.bits == 4 ? kSignedNibbleOffset : kSignedByteOffset;
  const int64_t row_bytes = codes.view().row_bytes();
  codes.codes.resize(static_cast<size_t>(codes.rows * row_bytes));
  for (int64_t row = 0; row < codes.rows; ++row) {
    const int64_t latent = row / stride * group + row % stride;
    for (int64_t col = 0; col < codes.cols; ++col) {
      const int integer = row % stride < group ? integers[static_cast<size_t>(col * keys.cols + latent)] : 0;
      write_code(codes, row_bytes, row, col, static_cast<uint8_t>(integer + offset));
    }
  }
  const BFloat16 one = BFloat16::from_float(1.0f);
  codes.scales.resize(static_cast<size_t>(codes.rows) * sizeof(one.bits));
  for (size_t at = 0; at < codes.scales.size(); at += sizeof(one.bits))
    std::memcpy(codes.scales.data() + at, &one.bits, sizeof(one.bits));
  for (int64_t first = 0; first < keys.cols; first += group) {
    for (int64_t row = 0; row < keys.rows; ++row) transposed.factors.push_back(keys.scale(row, first));
  }
  return transposed;
}

}  // namespace millrace::cpu
