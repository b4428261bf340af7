#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include "tensor/fp8.h"

/// The values of the codes that checkpoints store weights and scales in. Sources: OCP 8-bit Floating Point (E4M3, E5M2)
/// and Microscaling specifications 1.0 (E8M0, E2M1); the table of ggml's IQ4_NL.
namespace millrace::weights {

namespace detail {

constexpr float power_of_two(int exponent) {
  float value = 1.0f;
  for (; exponent > 0; --exponent) value *= 2.0f;
  for (; exponent < 0; ++exponent) value *= 0.5f;
  return value;
}

constexpr std::array<float, 256> make_e5m2() {
  std::array<float, 256> table{};
  for (int code = 0; code < 256; ++code) {
    const int exponent = (code >> 2) & 31;
    const int mantissa = code & 3;
    float value = exponent == 0 ? static_cast<float>(mantissa) * power_of_two(-16)
                                : static_cast<float>(4 + mantissa) * power_of_two(exponent - 17);
    if (exponent == 31) {
      value = mantissa == 0 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
    }
    table[static_cast<size_t>(code)] = (code & 0x80) != 0 ? -value : value;
  }
  return table;
}

constexpr std::array<float, 256> make_e8m0() {
  std::array<float, 256> table{};
  for (int code = 0; code < 255; ++code) table[static_cast<size_t>(code)] = power_of_two(code - 127);
  table[255] = std::numeric_limits<float>::quiet_NaN();
  return table;
}

}  // namespace detail

using tensor::kE4M3;
/// E5M2: the upper byte of an f16.
inline constexpr std::array<float, 256> kE5M2 = detail::make_e5m2();
/// E8M0: 2^(code - 127); 255 is NaN.
inline constexpr std::array<float, 256> kE8M0 = detail::make_e8m0();
/// E2M1: sign, 2 bits of exponent, 1 of mantissa.
inline constexpr std::array<float, 16> kE2M1 = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                                -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
/// The 16 values of ggml's IQ4_NL and IQ4_XS.
inline constexpr std::array<int8_t, 16> kIq4 = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                1,    13,   25,  38,  53,  69,  89,  113};

}  // namespace millrace::weights
