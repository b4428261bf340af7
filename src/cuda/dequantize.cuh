#pragma once

// Dequantizes packed weights of 4 and 8 bits (weight_layout.h) to bf16.

#include <type_traits>

#include "cuda/mma.cuh"
#include "cuda/packed_weight.h"

namespace millrace::cuda {

/// Calls use(constant) with the std::integral_constant of a kind of scales.
template <class Use>
__device__ __forceinline__ void with_scales(CodeScales scales, const Use& use) {
  const auto call = [&]<CodeScales kScales>() { use(std::integral_constant<CodeScales, kScales>{}); };
  switch (scales) {
    case CodeScales::kBf16: return call.template operator()<CodeScales::kBf16>();
    case CodeScales::kF16: return call.template operator()<CodeScales::kF16>();
    case CodeScales::kBf16Zero: return call.template operator()<CodeScales::kBf16Zero>();
    case CodeScales::kF16Zero: return call.template operator()<CodeScales::kF16Zero>();
    case CodeScales::kF32: return call.template operator()<CodeScales::kF32>();
    case CodeScales::kF32Zero: return call.template operator()<CodeScales::kF32Zero>();
    case CodeScales::kF32Minimum: return call.template operator()<CodeScales::kF32Minimum>();
    case CodeScales::kE4M3Halves: return call.template operator()<CodeScales::kE4M3Halves>();
    case CodeScales::kInt8Halves: return call.template operator()<CodeScales::kInt8Halves>();
    case CodeScales::kF16Factors: return call.template operator()<CodeScales::kF16Factors>();
  }
}

/// A unit's scale: a weight is (n - zero) · factor + minimum. With factors of 16 inputs the second half has its own.
struct UnitScale {
  float factor = 0.0f;
  float second = 0.0f;
  float zero = 0.0f;
  float minimum = 0.0f;
  __device__ UnitScale(const WeightFormat& format, const std::byte* from, int half) {
    with_scales(format.scales, [&](auto scales) {
      read<decltype(scales)::value>(format.codes, from, from + factors_offset(format, half));
    });
  }
  /// Reads a scale and, where it has any, the factors of the unit.
  template <CodeScales kScales>
  __device__ UnitScale(std::integral_constant<CodeScales, kScales> /*scales*/, WeightCodes codes, const std::byte* from,
                       const std::byte* factors) {
    read<kScales>(codes, from, factors);
  }
  /// Returns the weight of a code n of one of the halves of a unit, for `difference` = n - zero.
  [[nodiscard]] __device__ float weight(int half_of_unit, float difference) const {
    return difference * (half_of_unit != 0 ? second : factor) + minimum;
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

/// Stores eight neighbouring weights of a row. `pair(i)` gives two of them.
template <class Pair>
__device__ void store_weights(std::byte* tile, int row, int chunk, const Pair& pair) {
  *reinterpret_cast<uint4*>(tile + chunk_offset(row, chunk)) = uint4{pair(0), pair(1), pair(2), pair(3)};
}

/// Dequantizes the codes of a unit of kInt4. `weight(f)` gives the weight of a code n for f = n + 128.
template <class Weight>
__device__ void dequantize_int4(const uint32_t (&codes)[4], std::byte* tile, int row, int half, const Weight& weight) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    store_weights(tile, row, half * 4 + i, [&](int j) {
      const uint32_t pair = pair_of_codes(codes[i] >> 4 * j);
      return pack_bf16(weight(__uint_as_float(pair << 16)), weight(__uint_as_float(pair & 0xFFFF0000u)));
    });
  }
}

/// Dequantizes a unit of kInt4 with a scale in bf16.
__device__ inline void dequantize_int4_bf16(const uint32_t (&codes)[4], uint32_t scale, std::byte* tile, int row,
                                            int half) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    store_weights(tile, row, half * 4 + i,
                  [&](int j) { return int4_pair_times(codes[i] >> 4 * j, scale | scale << 16); });
  }
}

/// Returns, for the four codes in the lower half of a word, the bytes of a table.
__device__ inline uint32_t look_up(const uint32_t (&table)[4], uint32_t codes) {
  const uint32_t within = codes & 0x7777u;
  const uint32_t low = __byte_perm(table[0], table[1], within);
  const uint32_t high = __byte_perm(table[2], table[3], within);
  return __byte_perm(low, high, 0x3210u | (codes >> 1 & 0x4444u));
}

/// Dequantizes a unit of kTable4. `weight(second, f)` gives the weight of an integer n of a half for
/// f = n + 2^23 + 128.
template <class Weight>
__device__ void dequantize_table4(const uint32_t (&codes)[4], const uint32_t (&table)[4], std::byte* tile, int row,
                                  int half, const Weight& weight) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t even = look_up(table, codes[i]);
    const uint32_t odd = look_up(table, codes[i] >> 16);
    store_weights(tile, row, half * 4 + i, [&](int j) {
      return pack_bf16(weight(i / 2, byte_to_float(even, j)), weight(i / 2, byte_to_float(odd, j)));
    });
  }
}

/// Dequantizes the part of a unit of kInt8, which is a half. `weight(f)` gives the weight of n for f = n + 2^23 + 128.
template <class Weight>
__device__ void dequantize_int8(const uint32_t (&codes)[4], std::byte* tile, int row, int first_chunk,
                                const Weight& weight) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    store_weights(tile, row, first_chunk + i, [&](int j) {
      const uint32_t bytes = codes[2 * i + j / 2] ^ 0x80808080u;
      return pack_bf16(weight(byte_to_float(bytes, j % 2 * 2)), weight(byte_to_float(bytes, j % 2 * 2 + 1)));
    });
  }
}

/// Returns whether one of four codes of E4M3 is a NaN.
__device__ inline bool has_e4m3_nan(uint32_t codes) {
  return (((codes & 0x7F7F7F7Fu) + 0x01010101u) & 0x80808080u) != 0;
}

/// Dequantizes the part of a unit of kE4M3. Each weight is the f32 product of its number and the scale.
__device__ inline void dequantize_e4m3(const uint32_t (&codes)[4], std::byte* tile, int row, int first_chunk,
                                       float scale) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    store_weights(tile, row, first_chunk + i, [&](int j) {
      const uint32_t numbers = e4m3_pair_to_bf16(codes[2 * i + j / 2], static_cast<uint32_t>(j % 2));
      return pack_bf16(__uint_as_float(numbers << 16) * scale, __uint_as_float(numbers & 0xFFFF0000u) * scale);
    });
  }
}

/// Replaces the weights of the part whose codes are NaNs, which checkpoints hardly ever have. The codes come by value,
/// since their address would keep those of all formats in local memory.
__device__ __noinline__ inline void store_e4m3_nans(uint4 part, std::byte* tile, int row, int first_chunk) {
  const uint32_t codes[4] = {part.x, part.y, part.z, part.w};
  for (int i = 0; i < kPartBytes; ++i) {
    if ((codes[i / 4] >> i % 4 * 8 & 0x7Fu) != 0x7Fu) continue;
    *reinterpret_cast<uint16_t*>(tile + chunk_offset(row, first_chunk + i / 8) + i % 8 * 2) = 0x7FFFu;
  }
}

__device__ inline void read_part(const std::byte* from, uint32_t (&codes)[4]) {
  const uint4 read = *reinterpret_cast<const uint4*>(from);
  codes[0] = read.x;
  codes[1] = read.y;
  codes[2] = read.z;
  codes[3] = read.w;
}

/// Dequantizes a unit of a step to rows of a panel in bf16, as GEMMs read them.
__device__ inline void dequantize_unit(const WeightFormat& format, const std::byte* step, int row, int half,
                                       std::byte* tile) {
  constexpr float kInt4Base = 128.0f;
  constexpr float kByteBase = 0x1p23f + 128.0f;
  uint32_t codes[4];
  read_part(step + part_offset(format.codes, row, half, 0), codes);
  const std::byte* const scale_at = step + scale_offset(format, row, half);
  if (format.codes == WeightCodes::kInt4 && format.scales == CodeScales::kBf16) {
    return dequantize_int4_bf16(codes, *reinterpret_cast<const uint16_t*>(scale_at), tile, row, half);
  }
  if (format.codes == WeightCodes::kE4M3) {
    const float factor = *reinterpret_cast<const float*>(scale_at);
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      if (part > 0) read_part(step + part_offset(format.codes, row, half, part), codes);
      const int chunk = half * 4 + part * 2;
      dequantize_e4m3(codes, tile, row, chunk, factor);
      if (has_e4m3_nan(codes[0]) || has_e4m3_nan(codes[1]) || has_e4m3_nan(codes[2]) || has_e4m3_nan(codes[3])) {
        store_e4m3_nans(uint4{codes[0], codes[1], codes[2], codes[3]}, tile, row, chunk);
      }
    }
    return;
  }
  const UnitScale scale(format, scale_at, half);
  if (format.codes == WeightCodes::kInt4 &&
      (format.scales == CodeScales::kF16Zero || format.scales == CodeScales::kF16)) {
    // (128 + z) · s has at most 20 bits, so that the sum is rounded once, as (n - z) · s.
    const float minus = -((kInt4Base + scale.zero) * scale.factor);
    return dequantize_int4(codes, tile, row, half, [&](float f) { return __fmaf_rn(f, scale.factor, minus); });
  }
  const float zero = (format.codes == WeightCodes::kInt4 ? kInt4Base : kByteBase) + scale.zero;
  const auto weight = [&](int second, float f) { return scale.weight(second, f - zero); };
  const auto in_first = [&](float f) { return weight(0, f); };
  if (format.codes == WeightCodes::kInt4) return dequantize_int4(codes, tile, row, half, in_first);
  if (format.codes == WeightCodes::kTable4) {
    return dequantize_table4(codes, format.integers, tile, row, half, weight);
  }
  uint32_t rest[4];
  read_part(step + part_offset(format.codes, row, half, 1), rest);
  dequantize_int8(codes, tile, row, half * 4, in_first);
  dequantize_int8(rest, tile, row, half * 4 + 2, [&](float f) { return weight(1, f); });
}

}  // namespace millrace::cuda
