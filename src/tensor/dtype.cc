#include "tensor/dtype.h"

#include <cmath>

namespace millrace::tensor {

std::string_view to_string(DType dtype) {
  return enum_name(dtype);
}

Result<DType> parse_dtype(std::string_view name) {
  if (name == "f32" || name == "F32" || name == "float32" || name == "float") return DType::kF32;
  if (name == "bf16" || name == "BF16" || name == "bfloat16") return DType::kBF16;
  if (name == "f16" || name == "F16" || name == "float16" || name == "half") return DType::kF16;
  return make_error(ErrorCode::kInvalidArgument, "dtype '{}' is not one of f32, bf16, f16", name);
}

float Float16::to_float() const {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1Fu;
  const uint32_t mantissa = bits & 0x3FFu;
  if (exponent == 0x1F) return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
  return sign != 0 ? -magnitude : magnitude;
}

}  // namespace millrace::tensor
