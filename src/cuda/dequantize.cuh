#pragma once

// Reads the scales and the codes of packed weights of 4 and 8 bits (weight_layout.h).

#include <type_traits>

#include "cuda/mma.cuh"
#include "cuda/packed_weight.h"

namespace millrace::cuda {

/// A unit's scale: a weight is (n - zero) · factor + minimum. With factors of 16 inputs the second half has its own.
struct UnitScale {
  float factor = 0.0f;
  float second = 0.0f;
  float zero = 0.0f;
  float minimum = 0.0f;
  /// Reads a scale and, where it has any, the factors of the unit.
  template <CodeScales kScales>
  __device__ UnitScale(std::integral_constant<CodeScales, kScales> /*scales*/, WeightCodes codes, const std::byte* from,
                       const std::byte* factors) {
    read<kScales>(codes, from, factors);
  }

 private:
  __device__ static float low_integer(uint32_t bytes) { return static_cast<float>(static_cast<int8_t>(bytes & 0xFFu)); }
  template <CodeScales kScales>
  __device__ void read(WeightCodes codes, const std::byte* from, const std::byte* factors_at) {
    const auto word = [from] { return *reinterpret_cast<const uint32_t*>(from); };
    const auto factors = [factors_at] { return uint32_t{*reinterpret_cast<const uint16_t*>(factors_at)}; };
    if constexpr (kScales == CodeScales::kBf16) {
      factor = bf16_to_float(*reinterpret_cast<const uint16_t*>(from));
    } else if constexpr (kScales == CodeScales::kF16) {
      factor = binary16_to_float(*reinterpret_cast<const uint16_t*>(from));
    } else if constexpr (kScales == CodeScales::kBf16Zero || kScales == CodeScales::kF16Zero) {
      const auto bits = static_cast<uint16_t>(word() >> 16);
      factor = kScales == CodeScales::kBf16Zero ? bf16_to_float(bits) : binary16_to_float(bits);
      zero = static_cast<float>(static_cast<int16_t>(word() & 0xFFFFu));
    } else if constexpr (kScales == CodeScales::kF16Factors) {
      factor = binary16_to_float(static_cast<uint16_t>(word() & 0xFFFFu)) * low_integer(factors());
      minimum = binary16_to_float(static_cast<uint16_t>(word() >> 16)) * low_integer(factors() >> 8);
    } else {
      factor = *reinterpret_cast<const float*>(from);
      if constexpr (kScales == CodeScales::kF32Zero) zero = reinterpret_cast<const float*>(from)[1];
      if constexpr (kScales == CodeScales::kF32Minimum) minimum = reinterpret_cast<const float*>(from)[1];
    }
    if (codes == WeightCodes::kInt4 && (kScales == CodeScales::kBf16 || kScales == CodeScales::kF16)) zero = 8.0f;
    second = factor;
    if constexpr (kScales == CodeScales::kE4M3Halves) {
      const uint32_t numbers = e4m3_pair_to_bf16(factors(), 0);
      second = factor * __uint_as_float(numbers & 0xFFFF0000u);
      factor *= __uint_as_float(numbers << 16);
    } else if constexpr (kScales == CodeScales::kInt8Halves) {
      second = factor * low_integer(factors() >> 8);
      factor *= low_integer(factors());
    }
  }
};

/// Returns bits 0…3 and 16…19 of a word as 128 plus these integers, in bf16.
__device__ inline uint32_t pair_of_codes(uint32_t word) {
  return masked_or(word, 0x000F000Fu, 0x43004300u);
}
/// Returns the weights of two such codes of kInt4 with a scale in bf16. All steps but the last are exact.
__device__ inline uint32_t int4_pair_times(uint32_t word, uint32_t scales) {
  constexpr uint32_t kOnes = 0x3F803F80u;
  constexpr uint32_t kMinus136 = 0xC308C308u;
  constexpr uint32_t kMinusZeros = 0x80008000u;
  return fma_bf16x2(fma_bf16x2(pair_of_codes(word), kOnes, kMinus136), scales, kMinusZeros);
}

/// Returns, for the four codes in the lower half of a word, the bytes of a table.
__device__ inline uint32_t look_up(const uint32_t (&table)[4], uint32_t codes) {
  const uint32_t within = codes & 0x7777u;
  const uint32_t low = __byte_perm(table[0], table[1], within);
  const uint32_t high = __byte_perm(table[2], table[3], within);
  return __byte_perm(low, high, 0x3210u | (codes >> 1 & 0x4444u));
}

__device__ inline void read_part(const std::byte* from, uint32_t (&codes)[4]) {
  const uint4 read = *reinterpret_cast<const uint4*>(from);
  codes[0] = read.x;
  codes[1] = read.y;
  codes[2] = read.z;
  codes[3] = read.w;
}

}  // namespace millrace::cuda
