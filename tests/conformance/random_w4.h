#pragma once

#include <string_view>
#include <vector>

#include "conformance/harness.h"

/// Random weights in codes of 4 and 8 bits, in the formats of many libraries.
namespace millrace::test {

/// A kind of weight in codes.
struct W4Kind {
  std::string_view name;
  int bits = 4;
  tensor::W4Values values = tensor::W4Values::kInteger;
  tensor::W4Offsets offsets = tensor::W4Offsets::kNone;
  int64_t group = 32;
  tensor::DType scale_dtype = tensor::DType::kBF16;
  bool has_factors = false;
  tensor::W4HalfScales half_scales = tensor::W4HalfScales::kNone;
};

inline constexpr W4Kind kW4Kinds[] = {
    {.name = "w4"},
    {.name = "w4a16 of 128", .group = 128, .scale_dtype = tensor::DType::kF16},
    {.name = "w4a16 of a row", .group = 4096},
    {.name = "gptq", .offsets = tensor::W4Offsets::kZeroPoints, .group = 64, .scale_dtype = tensor::DType::kF16},
    {.name = "awq", .offsets = tensor::W4Offsets::kZeroPoints, .group = 128, .scale_dtype = tensor::DType::kF32},
    {.name = "q4_1", .offsets = tensor::W4Offsets::kMinimums, .scale_dtype = tensor::DType::kF16},
    {.name = "q4_k",
     .offsets = tensor::W4Offsets::kMinimums,
     .group = 256,
     .scale_dtype = tensor::DType::kF16,
     .has_factors = true},
    {.name = "iq4_nl", .values = tensor::W4Values::kIq4, .scale_dtype = tensor::DType::kF16},
    {.name = "iq4_xs",
     .values = tensor::W4Values::kIq4,
     .group = 256,
     .scale_dtype = tensor::DType::kF16,
     .has_factors = true},
    {.name = "mxfp4", .values = tensor::W4Values::kTwiceE2M1},
    {.name = "nvfp4",
     .values = tensor::W4Values::kTwiceE2M1,
     .group = 4096,
     .scale_dtype = tensor::DType::kF32,
     .half_scales = tensor::W4HalfScales::kE4M3},
};
/// Kinds that CPUs alone pack.
inline constexpr W4Kind kByteKinds[] = {
    {.name = "q8_0", .bits = 8, .scale_dtype = tensor::DType::kF16},
    {.name = "w8a16 of a row", .bits = 8, .group = 4096},
    {.name = "gptq of 8 bits",
     .bits = 8,
     .offsets = tensor::W4Offsets::kZeroPoints,
     .group = 128,
     .scale_dtype = tensor::DType::kF16},
    {.name = "q5_1", .bits = 8, .offsets = tensor::W4Offsets::kMinimums, .scale_dtype = tensor::DType::kF16},
    {.name = "q5_k",
     .bits = 8,
     .offsets = tensor::W4Offsets::kMinimums,
     .group = 256,
     .scale_dtype = tensor::DType::kF16,
     .has_factors = true},
    {.name = "q6_k",
     .bits = 8,
     .group = 256,
     .scale_dtype = tensor::DType::kF16,
     .half_scales = tensor::W4HalfScales::kInt8},
};
/// Returns the kinds that a backend packs.
[[nodiscard]] std::vector<W4Kind> w4_kinds_of(const tensor::Backend& backend);

/// Draws codes, scales and offsets with which weights are about 1 in size.
[[nodiscard]] tensor::W4Storage random_w4(Random& random, int64_t rows, int64_t cols, const W4Kind& kind);

}  // namespace millrace::test
