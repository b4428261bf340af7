#pragma once

#include "weights/weight_tensors.h"

/// Readers of quantized weights, by the form of their codes. Each fills WeightTensors::weight from the tensor of codes
/// and those that go with it. Errors: those of find_stored_weight().
namespace millrace::weights {

/// Sets scales per block of WeightFormat::block_rows and block_cols.
[[nodiscard]] Result<void> set_block_scales(WeightTensors& tensors, const NamedTensor& scales);

/// Reads FP8 of any library: a scale per tensor, per row, or per block.
[[nodiscard]] Result<void> read_fp8(WeightTensors& tensors, const NamedTensor& codes);
/// Reads MXFP4 and NVFP4 of compressed-tensors, ModelOpt and Quark: two codes per byte.
[[nodiscard]] Result<void> read_fp4(WeightTensors& tensors, const NamedTensor& codes);
/// Reads "pack-quantized" of compressed-tensors: words along the columns.
[[nodiscard]] Result<void> read_packed(WeightTensors& tensors, const NamedTensor& codes);
/// Reads GPTQ, also as AutoRound writes it: words down the columns.
[[nodiscard]] Result<void> read_gptq(WeightTensors& tensors, const NamedTensor& codes);
/// Reads AWQ of all versions.
[[nodiscard]] Result<void> read_awq(WeightTensors& tensors, const NamedTensor& codes);
/// Reads integers of 4 bits of Quark: groups, which are packed as those of AWQ, or a scale per row.
[[nodiscard]] Result<void> read_quark(WeightTensors& tensors, const NamedTensor& codes);
/// Reads integers in bytes of Quark, and "int-quantized" of compressed-tensors: a scale per tensor, row, or group of
/// columns, and zero points of 0.
[[nodiscard]] Result<void> read_bytes(WeightTensors& tensors, const NamedTensor& codes);
/// Reads SGLang's blockwise_int8: a scale per block.
[[nodiscard]] Result<void> read_int8_blocks(WeightTensors& tensors, const NamedTensor& codes);
/// Reads integers of SGLang's w4afp8: two signed codes per byte along the columns, and a scale per group of them.
[[nodiscard]] Result<void> read_int4_pairs(WeightTensors& tensors, const NamedTensor& codes);

inline constexpr int64_t kCodesPerWord = 8;  ///< of 4 bits

/// Codes of 4 bits in words of 8 rows, [cols, rows / 8].
struct RowWords {
  CodeOrder codes = CodeOrder::kNibblesAwq;
  ZeroArray::Order zeros = ZeroArray::Order::kNibblesAwq;
  uint8_t sign_bit = 0;  ///< of codes and zero points
  std::string_view scale_suffix;
  std::string_view zero_suffix;
};
[[nodiscard]] Result<void> read_row_words(WeightTensors& tensors, const NamedTensor& codes, const RowWords& words);

}  // namespace millrace::weights
