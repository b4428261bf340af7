#pragma once

#include <string_view>
#include <vector>

#include "conformance/harness.h"

/// Random weights in codes of 2 to 8 bits, in the formats of many libraries.
namespace millrace::test {

/// A kind of weight in codes.
struct CodeLayout {
  std::string_view name;
  int bits = 4;
  int integer_bits = 8;  ///< as in tensor::CodeMatrix
  tensor::CodeValues values = tensor::CodeValues::kInteger;
  tensor::CodeOffsets offsets = tensor::CodeOffsets::kNone;
  int64_t group = 32;
  tensor::DType scale_dtype = tensor::DType::kBF16;
  bool has_factors = false;
  tensor::CodeHalfScales half_scales = tensor::CodeHalfScales::kNone;
  bool has_half_minimums = false;
};

inline constexpr CodeLayout kCodeLayouts[] = {
    {.name = "w4"},
    {.name = "w4a16 of 128", .group = 128, .scale_dtype = tensor::DType::kF16},
    {.name = "w4a16 of a row", .group = 4096},
    {.name = "gptq", .offsets = tensor::CodeOffsets::kZeroPoints, .group = 64, .scale_dtype = tensor::DType::kF16},
    {.name = "awq", .offsets = tensor::CodeOffsets::kZeroPoints, .group = 128, .scale_dtype = tensor::DType::kF32},
    {.name = "q4_1", .offsets = tensor::CodeOffsets::kMinimums, .scale_dtype = tensor::DType::kF16},
    {.name = "q4_k",
     .offsets = tensor::CodeOffsets::kMinimums,
     .group = 256,
     .scale_dtype = tensor::DType::kF16,
     .has_factors = true},
    {.name = "iq4_nl", .values = tensor::CodeValues::kIq4, .scale_dtype = tensor::DType::kF16},
    {.name = "iq4_xs",
     .values = tensor::CodeValues::kIq4,
     .group = 256,
     .scale_dtype = tensor::DType::kF16,
     .has_factors = true},
    {.name = "mxfp4", .values = tensor::CodeValues::kTwiceE2M1},
    {.name = "nvfp4",
     .values = tensor::CodeValues::kTwiceE2M1,
     .group = 4096,
     .scale_dtype = tensor::DType::kF32,
     .half_scales = tensor::CodeHalfScales::kE4M3},
};
/// Kinds in codes of 8 bits.
inline constexpr CodeLayout kByteKinds[] = {
    {.name = "q8_0", .bits = 8, .scale_dtype = tensor::DType::kF16},
    {.name = "w8a16 of a row", .bits = 8, .group = 4096},
    {.name = "gptq of 8 bits",
     .bits = 8,
     .offsets = tensor::CodeOffsets::kZeroPoints,
     .group = 128,
     .scale_dtype = tensor::DType::kF16},
    {.name = "q5_1",
     .bits = 8,
     .integer_bits = 5,
     .offsets = tensor::CodeOffsets::kMinimums,
     .scale_dtype = tensor::DType::kF16},
    {.name = "q5_k",
     .bits = 8,
     .integer_bits = 5,
     .offsets = tensor::CodeOffsets::kMinimums,
     .group = 256,
     .scale_dtype = tensor::DType::kF16,
     .has_factors = true},
    {.name = "q6_k",
     .bits = 8,
     .integer_bits = 6,
     .group = 256,
     .scale_dtype = tensor::DType::kF16,
     .half_scales = tensor::CodeHalfScales::kInt8},
    {.name = "q3_k",
     .bits = 8,
     .integer_bits = 3,
     .group = 256,
     .scale_dtype = tensor::DType::kF16,
     .half_scales = tensor::CodeHalfScales::kInt8},
    {.name = "q2_k",
     .bits = 8,
     .integer_bits = 2,
     .offsets = tensor::CodeOffsets::kMinimums,
     .group = 256,
     .scale_dtype = tensor::DType::kF16,
     .half_scales = tensor::CodeHalfScales::kInt8,
     .has_half_minimums = true},
    {.name = "q5_0", .bits = 8, .integer_bits = 5, .scale_dtype = tensor::DType::kF16},
    {.name = "w6a16 of 128", .bits = 8, .integer_bits = 6, .group = 128},
    {.name = "w5a16 with zero points",
     .bits = 8,
     .integer_bits = 5,
     .offsets = tensor::CodeOffsets::kZeroPoints,
     .group = 64},
    {.name = "w6a16 with zero points",
     .bits = 8,
     .integer_bits = 6,
     .offsets = tensor::CodeOffsets::kZeroPoints,
     .scale_dtype = tensor::DType::kF32},
};
/// Returns the kinds that a backend packs.
[[nodiscard]] std::vector<CodeLayout> code_layouts_of(const tensor::Backend& backend);

/// Draws codes, scales and offsets with which weights are about 1 in size.
[[nodiscard]] tensor::CodeStorage random_codes(Random& random, int64_t rows, int64_t cols, const CodeLayout& kind);

}  // namespace millrace::test
