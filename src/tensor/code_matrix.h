#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tensor/host_tensor.h"
#include "tensor/sum_shards.h"
#include "tensor/w8.h"

/// Weights in codes of 4 bits, or of 8 that hold integers of 2 to 8 bits. These are signed where groups have neither
/// zero points nor minimums. A weight is the integer that its code stands for times the scale of its group, which are
/// neighbours along the input dimension. Zero points or minimums shift the weights of a group.
///
/// One description holds the formats of other libraries without loss: integers with zero points (compressed-tensors,
/// GPTQ, AWQ), Q4_0, Q4_1, Q4_K, IQ4_NL, IQ4_XS, MXFP4, NVFP4, and in bytes Q2_K, Q3_K, Q5_0, Q5_1, Q5_K, Q6_K and
/// Q8_0. Other formats with groups of fewer than 32 inputs do not fit.
namespace millrace::tensor {

/// Inputs per unit, whose activations share a scale. Groups are multiples of it.
inline constexpr int64_t kCodeUnit = 32;
/// Inputs that share one of CodeMatrix::half_scales.
inline constexpr int64_t kCodeHalf = kCodeUnit / 2;

/// The integers that codes stand for.
enum class CodeValues : uint8_t {
  kInteger,    ///< the code: of 4 bits minus 8 where groups have neither zero points nor minimums, a byte minus 128
               ///< where groups have no zero points
  kTwiceE2M1,  ///< twice the values of E2M1, which are whole numbers
  kIq4,        ///< the table of ggml's IQ4_NL
};

/// The offset of a group's weights; only integer codes have one.
enum class CodeOffsets : uint8_t {
  kNone,
  kZeroPoints,  ///< an integer from 0 to 255 is subtracted from the code
  kMinimums,    ///< a number is added to the weight
};

/// What the factors of the scales of each 16 columns are.
enum class CodeHalfScales : uint8_t { kNone, kE4M3, kInt8 };

/// Returns the integers of the 16 codes.
[[nodiscard]] std::array<int8_t, 16> code_integers(CodeValues values, CodeOffsets offsets);

/// A matrix [rows, cols] in host memory, borrowed. It may be some columns of stored rows.
struct CodeMatrix {
  std::string name;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t first_col = 0;    ///< within the stored rows, a multiple of kCodeUnit
  int64_t stored_cols = 0;  ///< of the stored rows
  int bits = 4;             ///< of a code: 4, or 8 for integers only
  int integer_bits = 8;     ///< of the integers in codes of 8 bits: 2, 3 or 5 to 8
  CodeValues values = CodeValues::kInteger;
  CodeOffsets offsets = CodeOffsets::kNone;
  int64_t group = kCodeUnit;  ///< columns per scale, a multiple of kCodeUnit
  DType scale_dtype = DType::kBF16;
  const uint8_t* codes = nullptr;        // [rows, row_bytes()]; of 4 bits an even column's in the lower half
  const std::byte* scales = nullptr;     // [rows, groups()]
  const uint8_t* zero_points = nullptr;  // [rows, groups()] of kZeroPoints
  const std::byte* minimums = nullptr;   // [rows, groups()] of kMinimums, of scale_dtype
  // Further factors of the scales and minimums of each 32 columns; null: 1.
  const int8_t* unit_scales = nullptr;    // [rows, units()]
  const int8_t* unit_minimums = nullptr;  // [rows, units()]
  // Further factors of the scales of each 16 columns, none of them NaN. They exclude zero points and unit_scales.
  CodeHalfScales half_kind = CodeHalfScales::kNone;
  const uint8_t* half_scales = nullptr;   // [rows, halves()], or null
  const int8_t* half_minimums = nullptr;  // [rows, halves()] of kMinimums with half_scales of kInt8, or null

  [[nodiscard]] int64_t groups() const { return (stored_cols + group - 1) / group; }
  [[nodiscard]] int64_t units() const { return (stored_cols + kCodeUnit - 1) / kCodeUnit; }
  [[nodiscard]] int64_t halves() const { return (stored_cols + kCodeHalf - 1) / kCodeHalf; }
  [[nodiscard]] int64_t row_bytes() const { return (stored_cols * bits + 7) / 8; }
  /// Returns the code of a weight.
  [[nodiscard]] uint8_t code(int64_t row, int64_t col) const;
  /// Returns the scale of a weight's group, without further factors.
  [[nodiscard]] float group_scale(int64_t row, int64_t col) const;
  /// Returns the scale, or the minimum, of a weight with all its factors.
  [[nodiscard]] float scale(int64_t row, int64_t col) const;
  [[nodiscard]] float minimum(int64_t row, int64_t col) const;
  /// Returns the bytes of codes, scales and offsets.
  [[nodiscard]] size_t bytes() const;
};

/// Such a matrix that owns its memory. Members are as in CodeMatrix.
struct CodeStorage {
  std::string name;
  int64_t rows = 0;
  int64_t cols = 0;
  int bits = 4;
  int integer_bits = 8;
  CodeValues values = CodeValues::kInteger;
  CodeOffsets offsets = CodeOffsets::kNone;
  int64_t group = kCodeUnit;
  DType scale_dtype = DType::kBF16;
  std::vector<uint8_t> codes;
  std::vector<std::byte> scales;
  std::vector<uint8_t> zero_points;
  std::vector<std::byte> minimums;
  std::vector<int8_t> unit_scales;
  std::vector<int8_t> unit_minimums;
  CodeHalfScales half_kind = CodeHalfScales::kNone;
  std::vector<uint8_t> half_scales;
  std::vector<int8_t> half_minimums;
  [[nodiscard]] CodeMatrix view() const;
};

/// Returns some rows, or some columns, of a matrix in place. Columns begin at a multiple of kCodeUnit.
[[nodiscard]] CodeMatrix row_slice(const CodeMatrix& matrix, TermRange rows);
[[nodiscard]] CodeMatrix column_slice(const CodeMatrix& matrix, TermRange cols);
/// Copies a matrix of whole rows. Rows from its last one to `count` are zeros.
[[nodiscard]] CodeStorage padded_rows(const CodeMatrix& matrix, int64_t count);

/// Reads rows [first, first + count) of a matrix as f32 [count, cols].
using ReadRowsFn = std::function<void(int64_t first, int64_t count, float* out)>;
/// Maximum rows per call of a ReadRowsFn.
inline constexpr int64_t kReadRows = 32;

/// Quantizes a matrix to integers from -8 to 7 with a bf16 scale for each `group` inputs. Of several scales a group
/// takes the one with the smallest squared error. A group with a non-finite weight becomes NaN; a group of weights
/// below 2^-100 becomes zero. `threads` is the maximum; 0 means one per processor.
[[nodiscard]] CodeStorage quantize_w4(const HostTensor& matrix, int64_t group = kCodeUnit, int32_t threads = 0);
/// Quantizes a matrix [rows, cols] whose rows `read` returns, on any of the threads.
[[nodiscard]] CodeStorage quantize_w4(const std::string& name, int64_t rows, int64_t cols, const ReadRowsFn& read,
                                      int64_t group = kCodeUnit, int32_t threads = 0);

/// Returns a matrix of 8 bits with a scale per row in codes, without loss.
[[nodiscard]] CodeStorage to_codes(const W8Matrix& matrix);

/// Dequantizes `count` weights of a row from column `first` on.
void read_floats(const CodeMatrix& matrix, int64_t row, int64_t first, int64_t count, float* out);

/// Returns whether matrices share a layout: codes of as many bits and of the same values, not minimums with other
/// offsets, and the same kinds of half_scales and half_minimums.
[[nodiscard]] bool share_code_layout(const CodeMatrix& left, const CodeMatrix& right);
/// Returns whether matrices have 4-bit codes in one layout.
[[nodiscard]] bool share_nibble_layout(std::span<const CodeMatrix> parts);

}  // namespace millrace::tensor
