#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/enum_names.h"
#include "base/result.h"

namespace millrace::tensor {

/// The floating-point types that are computed with.
enum class DType : uint8_t { kF32, kBF16, kF16 };

inline constexpr EnumName<DType> kDTypeNames[] = {
    {DType::kF32, "f32"},
    {DType::kBF16, "bf16"},
    {DType::kF16, "f16"},
};
constexpr std::span<const EnumName<DType>> enum_names(DType) {
  return kDTypeNames;
}

/// Returns the bytes of one element.
[[nodiscard]] constexpr size_t size_of(DType dtype) {
  return dtype == DType::kF32 ? 4 : 2;
}
[[nodiscard]] std::string_view to_string(DType dtype);
/// Parses a dtype name of config.json ("bfloat16"), safetensors ("BF16") or a flag ("bf16").
[[nodiscard]] Result<DType> parse_dtype(std::string_view name);

/// A bfloat16 as its bits. Arithmetic happens in f32.
struct BFloat16 {
  uint16_t bits = 0;
  [[nodiscard]] static constexpr BFloat16 from_float(float value) {
    const uint32_t word = std::bit_cast<uint32_t>(value);
    if ((word & 0x7FFFFFFFu) > 0x7F800000u) return {static_cast<uint16_t>((word >> 16) | 0x40u)};
    return {static_cast<uint16_t>((word + 0x7FFFu + ((word >> 16) & 1u)) >> 16)};
  }
  [[nodiscard]] constexpr float to_float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }
};

/// An IEEE binary16 as its bits. Checkpoints hold it; it is only read.
struct Float16 {
  uint16_t bits = 0;
  [[nodiscard]] float to_float() const;
};

}  // namespace millrace::tensor
