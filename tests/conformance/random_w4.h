#pragma once

#include <string_view>

#include "conformance/harness.h"

/// Random weights of 4 bits in the formats of many libraries.
namespace millrace::test {

/// A kind of 4-bit weight.
struct W4Kind {
  std::string_view name;
  tensor::W4Values values = tensor::W4Values::kInteger;
  tensor::W4Offsets offsets = tensor::W4Offsets::kNone;
  int64_t group = 32;
  tensor::DType scale_dtype = tensor::DType::kBF16;
  bool has_factors = false;
  bool has_half_scales = false;
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
     .has_half_scales = true},
};

/// Draws codes, scales and offsets with which weights are about 1 in size.
[[nodiscard]] tensor::W4Storage random_w4(Random& random, int64_t rows, int64_t cols, const W4Kind& kind);

}  // namespace millrace::test
