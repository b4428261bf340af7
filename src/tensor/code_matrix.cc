#include "tensor/code_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <span>

#include "base/check.h"
#include "base/parallel_for.h"
#include "tensor/fp8.h"

namespace millrace::tensor {
namespace {

constexpr std::array<int8_t, 16> kTwiceE2M1 = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
constexpr std::array<int8_t, 16> kIq4 = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

constexpr float kLeastMagnitude = 0x1p-100f;
/// Rounds a small f32 to the nearest integer, ties to even, when added and subtracted.
constexpr float kRoundingTerm = 12582912.0f;
/// Weights that a thread quantizes at a time. For fewer another thread costs more than it saves.
constexpr int64_t kCodeWeightsPerBlock = 1 << 18;
/// The integers that the largest magnitude may become, before the scale is fitted to the whole group.
constexpr float kLargestIntegers[] = {8.0f, 7.5f, 7.0f, 8.5f, 6.5f, 9.0f, 9.5f};

float element(const std::byte* data, DType dtype, int64_t index) {
  const HostTensor all{.dtype = dtype, .shape = {index + 1}, .data = data};
  float value = 0.0f;
  read_floats(all, index, 1, &value);
  return value;
}

/// Weights that are added up lane by lane, which the compiler turns into vectors.
constexpr size_t kLanes = 8;
constexpr int64_t kMaxGroup = 512;

float rounded(float value) {
  return std::clamp(value + kRoundingTerm - kRoundingTerm, -8.0f, 7.0f);
}

/// Finds the scale with which integers stand for some weights with the smallest squared error.
class GroupFit {
 public:
  /// Takes weights of any size times `factor`; sums of their squares must neither overflow nor vanish.
  GroupFit(std::span<const float> weights, float factor) : count_((weights.size() + kLanes - 1) / kLanes * kLanes) {
    for (size_t i = 0; i < weights.size(); ++i) weights_[i] = weights[i] * factor;
  }

  /// Tries the integers nearest to the weights times `inverse`.
  void try_inverse(float inverse) {
    std::array<float, kLanes> products{};
    std::array<float, kLanes> squares{};
    for (size_t first = 0; first < count_; first += kLanes) {
      for (size_t lane = 0; lane < kLanes; ++lane) {
        const float weight = weights_[first + lane];
        const float integer = rounded(weight * inverse);
        products[lane] += weight * integer;
        squares[lane] += integer * integer;
      }
    }
    const float product = std::accumulate(products.begin(), products.end(), 0.0f);
    const float square = std::accumulate(squares.begin(), squares.end(), 0.0f);
    if (!(square > 0.0f)) return;
    const float gain = product * product / square;  // the weights' squares minus the squared error
    if (gain <= gain_) return;
    gain_ = gain;
    scale_ = product / square;
  }
  [[nodiscard]] float scale() const { return scale_; }

 private:
  std::array<float, kMaxGroup> weights_{};  // zeros beyond the last
  size_t count_;
  float gain_ = 0.0f;
  float scale_ = 0.0f;
};

BFloat16 fitted_scale(std::span<const float> weights) {
  float largest = 0.0f;  // with its sign
  bool is_finite = true;
  for (const float weight : weights) {
    is_finite = is_finite && std::isfinite(weight);
    if (std::abs(weight) > std::abs(largest)) largest = weight;
  }
  if (!is_finite) return BFloat16::from_float(std::numeric_limits<float>::quiet_NaN());
  if (std::abs(largest) < kLeastMagnitude) return {};
  const int exponent = std::ilogb(largest);
  const float factor = std::ldexp(1.0f, -exponent);
  GroupFit fit(weights, factor);
  const float inverse = 1.0f / (largest * factor);
  for (const float integer : kLargestIntegers) {
    fit.try_inverse(-integer * inverse);  // -8 has no counterpart
    fit.try_inverse(integer * inverse);
  }
  return BFloat16::from_float(std::ldexp(fit.scale(), exponent));
}

/// Quantizes one row. Its codes are zeros before.
void quantize_row(std::span<const float> weights, int64_t row, CodeStorage& storage) {
  const CodeMatrix layout = storage.view();
  uint8_t* const codes = storage.codes.data() + row * layout.row_bytes();
  for (int64_t group = 0; group < layout.groups(); ++group) {
    const int64_t first = group * storage.group;
    const int64_t count = std::min(storage.group, storage.cols - first);
    const auto own = weights.subspan(static_cast<size_t>(first), static_cast<size_t>(count));
    const BFloat16 scale = fitted_scale(own);
    std::memcpy(storage.scales.data() + (row * layout.groups() + group) * 2, &scale.bits, 2);
    const float divisor = scale.to_float();
    const bool is_zero = !(std::abs(divisor) > 0.0f);  // or not a number
    for (int64_t i = 0; i < count; ++i) {
      const float integer = is_zero ? 0.0f : rounded(own[static_cast<size_t>(i)] / divisor);
      const auto code = static_cast<uint8_t>(static_cast<int32_t>(integer) + 8);
      uint8_t& two = codes[(first + i) / 2];
      two = static_cast<uint8_t>(two | code << ((first + i) % 2 * 4));
    }
  }
}

void quantize_rows(const ReadRowsFn& read, int64_t begin, int64_t end, CodeStorage& storage) {
  std::vector<float> weights(static_cast<size_t>(kReadRows * storage.cols));
  for (int64_t first = begin; first < end; first += kReadRows) {
    const int64_t count = std::min(kReadRows, end - first);
    read(first, count, weights.data());
    for (int64_t i = 0; i < count; ++i)
      quantize_row(std::span(weights).subspan(static_cast<size_t>(i * storage.cols), static_cast<size_t>(storage.cols)),
                   first + i, storage);
  }
}

}  // namespace

CodeStorage to_codes(const W8Matrix& matrix) {
  CHECK(matrix.per_channel_scales, "{} has a scale per group, wanted one per row", matrix.name);
  CodeStorage storage{.name = matrix.name,
                      .rows = matrix.rows,
                      .cols = matrix.cols,
                      .bits = 8,
                      .group = (matrix.cols + kCodeUnit - 1) / kCodeUnit * kCodeUnit,
                      .scale_dtype = matrix.scale_dtype};
  storage.codes.resize(static_cast<size_t>(matrix.rows * matrix.cols));
  for (size_t i = 0; i < storage.codes.size(); ++i)
    storage.codes[i] = static_cast<uint8_t>(matrix.values[i] ^ std::byte{128});
  storage.scales.assign(matrix.scales, matrix.scales + matrix.rows * static_cast<int64_t>(size_of(matrix.scale_dtype)));
  return storage;
}

bool share_code_layout(const CodeMatrix& left, const CodeMatrix& right) {
  return left.bits == right.bits && left.values == right.values && left.half_kind == right.half_kind &&
         (left.offsets == CodeOffsets::kMinimums) == (right.offsets == CodeOffsets::kMinimums) &&
         (left.half_minimums == nullptr) == (right.half_minimums == nullptr);
}

bool share_nibble_layout(std::span<const CodeMatrix> parts) {
  const CodeMatrix& first = parts.front();
  return first.bits == 4 &&
         std::ranges::all_of(parts, [&first](const CodeMatrix& part) { return share_code_layout(part, first); });
}

std::array<int8_t, 16> code_integers(CodeValues values, CodeOffsets offsets) {
  if (values == CodeValues::kTwiceE2M1) return kTwiceE2M1;
  if (values == CodeValues::kIq4) return kIq4;
  std::array<int8_t, 16> integers{};
  for (int8_t code = 0; code < 16; ++code)
    integers[static_cast<size_t>(code)] = static_cast<int8_t>(offsets == CodeOffsets::kNone ? code - 8 : code);
  return integers;
}

uint8_t CodeMatrix::code(int64_t row, int64_t col) const {
  const int64_t at = first_col + col;
  if (bits == 8) return codes[row * row_bytes() + at];
  return codes[row * row_bytes() + at / 2] >> (at % 2 * 4) & 15;
}

float CodeMatrix::group_scale(int64_t row, int64_t col) const {
  return element(scales, scale_dtype, row * groups() + (first_col + col) / group);
}

float CodeMatrix::scale(int64_t row, int64_t col) const {
  const int64_t at = first_col + col;
  const float scale = group_scale(row, col);
  if (half_scales != nullptr) {
    const uint8_t factor = half_scales[row * halves() + at / kCodeHalf];
    return scale *
           (half_kind == CodeHalfScales::kE4M3 ? kE4M3[factor] : static_cast<float>(static_cast<int8_t>(factor)));
  }
  if (unit_scales == nullptr) return scale;
  return scale * static_cast<float>(unit_scales[row * units() + at / kCodeUnit]);
}

float CodeMatrix::minimum(int64_t row, int64_t col) const {
  if (offsets != CodeOffsets::kMinimums) return 0.0f;
  const int64_t at = first_col + col;
  const float minimum = element(minimums, scale_dtype, row * groups() + at / group);
  if (half_minimums != nullptr) return minimum * static_cast<float>(half_minimums[row * halves() + at / kCodeHalf]);
  if (unit_minimums == nullptr) return minimum;
  return minimum * static_cast<float>(unit_minimums[row * units() + at / kCodeUnit]);
}

size_t CodeMatrix::bytes() const {
  const auto each_group = static_cast<int64_t>(size_of(scale_dtype)) * (offsets == CodeOffsets::kMinimums ? 2 : 1) +
                          (offsets == CodeOffsets::kZeroPoints ? 1 : 0);
  const int64_t each_unit = (unit_scales != nullptr ? 1 : 0) + (unit_minimums != nullptr ? 1 : 0) +
                            (half_scales != nullptr ? 2 : 0) + (half_minimums != nullptr ? 2 : 0);
  return static_cast<size_t>(rows * ((cols * bits + 7) / 8 + (cols + group - 1) / group * each_group +
                                     (cols + kCodeUnit - 1) / kCodeUnit * each_unit));
}

CodeMatrix CodeStorage::view() const {
  const auto or_null = [](const auto& values) { return values.empty() ? nullptr : values.data(); };
  return {.name = name,
          .rows = rows,
          .cols = cols,
          .stored_cols = cols,
          .bits = bits,
          .integer_bits = integer_bits,
          .values = values,
          .offsets = offsets,
          .group = group,
          .scale_dtype = scale_dtype,
          .codes = codes.data(),
          .scales = scales.data(),
          .zero_points = or_null(zero_points),
          .minimums = or_null(minimums),
          .unit_scales = or_null(unit_scales),
          .unit_minimums = or_null(unit_minimums),
          .half_kind = half_kind,
          .half_scales = or_null(half_scales),
          .half_minimums = or_null(half_minimums)};
}

CodeMatrix row_slice(const CodeMatrix& matrix, TermRange rows) {
  CHECK(0 <= rows.begin && rows.begin <= rows.end && rows.end <= matrix.rows, "{}: rows [{}, {}) of {}", matrix.name,
        rows.begin, rows.end, matrix.rows);
  CodeMatrix slice = matrix;
  slice.rows = rows.size();
  slice.codes += rows.begin * matrix.row_bytes();
  const int64_t groups = rows.begin * matrix.groups();
  const auto group_bytes = static_cast<size_t>(groups) * size_of(matrix.scale_dtype);
  slice.scales += group_bytes;
  if (slice.zero_points != nullptr) slice.zero_points += groups;
  if (slice.minimums != nullptr) slice.minimums += group_bytes;
  if (slice.unit_scales != nullptr) slice.unit_scales += rows.begin * matrix.units();
  if (slice.unit_minimums != nullptr) slice.unit_minimums += rows.begin * matrix.units();
  if (slice.half_scales != nullptr) slice.half_scales += rows.begin * matrix.halves();
  if (slice.half_minimums != nullptr) slice.half_minimums += rows.begin * matrix.halves();
  return slice;
}

CodeMatrix column_slice(const CodeMatrix& matrix, TermRange cols) {
  CHECK(0 <= cols.begin && cols.begin <= cols.end && cols.end <= matrix.cols, "{}: columns [{}, {}) of {}", matrix.name,
        cols.begin, cols.end, matrix.cols);
  CHECK(cols.begin % kCodeUnit == 0, "{}: columns from {} on begin inside a unit of {}", matrix.name, cols.begin,
        kCodeUnit);
  CodeMatrix slice = matrix;
  slice.first_col += cols.begin;
  slice.cols = cols.size();
  return slice;
}

CodeStorage padded_rows(const CodeMatrix& matrix, int64_t count) {
  CHECK(matrix.first_col == 0 && matrix.cols == matrix.stored_cols && count >= matrix.rows, "{}: {} rows for {}",
        matrix.name, count, matrix.rows);
  CodeStorage storage{.name = matrix.name,
                      .rows = count,
                      .cols = matrix.cols,
                      .bits = matrix.bits,
                      .integer_bits = matrix.integer_bits,
                      .values = matrix.values,
                      .offsets = matrix.offsets,
                      .group = matrix.group,
                      .scale_dtype = matrix.scale_dtype,
                      .half_kind = matrix.half_kind};
  const auto copy = [&](auto& to, const auto* from, int64_t per_row) {
    if (from == nullptr) return;
    to.resize(static_cast<size_t>(count * per_row));
    std::memcpy(to.data(), from, static_cast<size_t>(matrix.rows * per_row));
  };
  const int64_t scale_bytes = matrix.groups() * static_cast<int64_t>(size_of(matrix.scale_dtype));
  if (matrix.bits == 8 && matrix.offsets != CodeOffsets::kZeroPoints)
    storage.codes.assign(static_cast<size_t>(count * matrix.row_bytes()), uint8_t{128});  // integers of zero
  copy(storage.codes, matrix.codes, matrix.row_bytes());
  copy(storage.scales, matrix.scales, scale_bytes);
  copy(storage.zero_points, matrix.zero_points, matrix.groups());
  copy(storage.minimums, matrix.minimums, scale_bytes);
  copy(storage.unit_scales, matrix.unit_scales, matrix.units());
  copy(storage.unit_minimums, matrix.unit_minimums, matrix.units());
  copy(storage.half_scales, matrix.half_scales, matrix.halves());
  copy(storage.half_minimums, matrix.half_minimums, matrix.halves());
  return storage;
}

CodeStorage quantize_w4(const HostTensor& matrix, int64_t group, int32_t threads) {
  CHECK(matrix.shape.rank() == 2, "{}: {} is not a matrix", matrix.name, matrix.shape.to_string());
  const int64_t cols = matrix.shape[1];
  const auto read = [&matrix, cols](int64_t first, int64_t count, float* out) {
    read_floats(matrix, first * cols, count * cols, out);
  };
  return quantize_w4(matrix.name, matrix.shape[0], cols, read, group, threads);
}

CodeStorage quantize_w4(const std::string& name, int64_t rows, int64_t cols, const ReadRowsFn& read, int64_t group,
                        int32_t threads) {
  CHECK(group > 0 && group <= kMaxGroup && group % kCodeUnit == 0, "groups of {} inputs", group);
  CodeStorage storage{.name = name, .rows = rows, .cols = cols, .group = group};
  const CodeMatrix layout = storage.view();
  storage.codes.resize(static_cast<size_t>(rows * layout.row_bytes()));
  storage.scales.resize(static_cast<size_t>(rows * layout.groups() * 2));
  const int64_t block = kCodeWeightsPerBlock / std::clamp<int64_t>(cols, 1, kCodeWeightsPerBlock);
  parallel_for({.count = rows, .block = block, .threads = threads, .thread_name = "quantize"},
               [&](int64_t begin, int64_t end) { quantize_rows(read, begin, end, storage); });
  return storage;
}

void read_floats(const CodeMatrix& matrix, int64_t row, int64_t first, int64_t count, float* out) {
  const std::array<int8_t, 16> integers = code_integers(matrix.values, matrix.offsets);
  const int byte_offset = matrix.offsets == CodeOffsets::kZeroPoints ? 0 : 128;
  float scale = 0.0f;
  float minimum = 0.0f;
  int zero = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t col = first + i;
    if (const int64_t at = matrix.first_col + col; i == 0 || at % kCodeHalf == 0) {
      scale = matrix.scale(row, col);
      minimum = matrix.minimum(row, col);
      if (matrix.offsets == CodeOffsets::kZeroPoints)
        zero = matrix.zero_points[row * matrix.groups() + at / matrix.group];
    }
    const int code = matrix.code(row, col);
    const int integer = matrix.bits == 4 ? integers[static_cast<size_t>(code)] : code - byte_offset;
    out[i] = static_cast<float>(integer - zero) * scale + minimum;
  }
}

}  // namespace millrace::tensor
