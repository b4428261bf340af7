#pragma once

// Dequantizes packed weights of 4 and 8 bits (weight_layout.h) in registers, to operand a of mma and wgmma.

#include "cuda/dequantize.cuh"

namespace millrace::cuda {

/// A format known to the compiler, but for the scales of a step.
template <WeightCodes kTheCodes, CodeScales kTheScales>
struct KnownFormat {
  static constexpr WeightCodes kCodes = kTheCodes;
  static constexpr CodeScales kScales = kTheScales;
  /// Set where (n - z) · s is one fused operation: (128 + z) · s has at most 20 bits.
  static constexpr bool kFuses =
      kCodes == WeightCodes::kInt4 && (kScales == CodeScales::kF16Zero || kScales == CodeScales::kF16);
  static constexpr bool kHasMinimums = kScales == CodeScales::kF32Minimum || kScales == CodeScales::kF16Factors;
  const WeightFormat& format;

  /// Returns the weight of a code n of one of the halves of a unit, for `difference` = n - zero.
  [[nodiscard]] __device__ static float weight(const UnitScale& scale, int half_of_unit, float difference) {
    const float product = difference * (half_of_unit != 0 ? scale.second : scale.factor);
    return kHasMinimums ? product + scale.minimum : product;
  }
  [[nodiscard]] __device__ const std::byte* scale_at(const std::byte* step, int row, int half) const {
    const int which = format.scales_per_step > 1 ? half : 0;
    return step + step_code_bytes(kCodes) + (which * kPanelRows + row) * scale_bytes(kScales);
  }
  [[nodiscard]] __device__ UnitScale scale(const std::byte* step, int row, int half) const {
    const std::byte* const at = scale_at(step, row, half);
    return {std::integral_constant<CodeScales, kScales>{}, kCodes, at, at + factors_offset(format, half)};
  }
};

/// Returns the number of a format other than kBf16 and kE4M3Both, for with_known_format().
constexpr int format_number(WeightCodes codes, CodeScales scales) {
  constexpr int kScaleKinds = static_cast<int>(CodeScales::kF16Factors) + 1;
  return static_cast<int>(codes) * kScaleKinds + static_cast<int>(scales);
}
/// Calls use(known) with the KnownFormat of a format of this number: by one jump.
template <class Use>
__device__ __forceinline__ void with_known_format(const WeightFormat& format, int number, const Use& use) {
#define MILLRACE_FORMAT(codes, scales)                                \
  case format_number(WeightCodes::codes, CodeScales::scales):         \
    use(KnownFormat<WeightCodes::codes, CodeScales::scales>{format}); \
    break;
#define MILLRACE_FORMATS(codes)       \
  MILLRACE_FORMAT(codes, kBf16)       \
  MILLRACE_FORMAT(codes, kF16)        \
  MILLRACE_FORMAT(codes, kBf16Zero)   \
  MILLRACE_FORMAT(codes, kF16Zero)    \
  MILLRACE_FORMAT(codes, kF32)        \
  MILLRACE_FORMAT(codes, kF32Zero)    \
  MILLRACE_FORMAT(codes, kF32Minimum) \
  MILLRACE_FORMAT(codes, kE4M3Halves) \
  MILLRACE_FORMAT(codes, kInt8Halves) \
  MILLRACE_FORMAT(codes, kF16Factors)
  switch (number) {
    MILLRACE_FORMATS(kInt4)
    MILLRACE_FORMATS(kTable4)
    MILLRACE_FORMATS(kInt8)
    MILLRACE_FORMAT(kE4M3, kF32)
  }
#undef MILLRACE_FORMATS
#undef MILLRACE_FORMAT
}

__device__ inline float low_of_pair(uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ inline float high_of_pair(uint32_t pair) {
  return __uint_as_float(pair & 0xFFFF0000u);
}
/// Returns the product of two bf16 pairs, rounded once.
__device__ inline uint32_t mul_bf16x2(uint32_t a, uint32_t b) {
  constexpr uint32_t kMinusZeros = 0x80008000u;
  return fma_bf16x2(a, b, kMinusZeros);
}
/// The weights of a half of a step (32 inputs) that a lane holds of 16 rows: two operands of 16 inputs each. A lane has
/// two rows, `row` and row + 8 of the panel. Of 8 · i + 0…7 inputs it has 2 · quad and 2 · quad + 1.
class HalfOperands {
 public:
  /// Dequantizes the half of a step in shared memory.
  template <class Known>
  __device__ void dequantize(const Known& known, const std::byte* step, int row, int quad, int half) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Place at{.step = step, .row = row + 8 * i, .quad = quad, .half = half, .which = i};
      if constexpr (Known::kCodes == WeightCodes::kE4M3) {
        dequantize_e4m3(known, at);
      } else if constexpr (Known::kCodes == WeightCodes::kInt8) {
        dequantize_int8(known, at);
      } else {
        uint32_t codes[4];
        read_part(step + part_offset(Known::kCodes, at.row, half, 0), codes);
        if constexpr (Known::kCodes == WeightCodes::kTable4) {
          dequantize_table4(known, codes, at);
        } else {
          dequantize_int4(known, codes, at);
        }
      }
    }
  }
  /// Returns the operand of inputs 16 · i…16 · i + 15 of the half.
  [[nodiscard]] __device__ const uint32_t (&operand(int i) const)[4] { return words_[i]; }
  /// Stores the weights of a half, with the same row and quad, to a step of a panel in bf16.
  __device__ void store(std::byte* panel, int row, int quad, int half) const {
#pragma unroll
    for (int word = 0; word < 8; ++word) {  // of each eight inputs, the two rows
      const int of_half = word / 2;
      std::byte* const chunk = panel + chunk_offset(row + word % 2 * 8, half * 4 + of_half);
      *reinterpret_cast<uint32_t*>(chunk + quad * 4) = words_[of_half / 2][of_half % 2 * 2 + word % 2];
    }
  }

 private:
  /// One of the two rows of a lane, with the lane's inputs.
  struct Place {
    const std::byte* step;
    int row;
    int quad;
    int half;
    int which;
    /// Returns the codes of 8 bits of this lane's inputs of the i-th eight, in bytes 0 and 1.
    [[nodiscard]] __device__ uint32_t bytes(int i) const {
      const std::byte* const part = step + part_offset(WeightCodes::kInt8, row, half, i / 2);
      return *reinterpret_cast<const uint16_t*>(part + i % 2 * 8 + quad * 2);
    }
  };
  /// Sets the weights of each eight inputs i to pair(i).
  template <class Pair>
  __device__ void put(const Place& at, const Pair& pair) {
#pragma unroll
    for (int i = 0; i < 4; ++i) words_[i / 2][i % 2 * 2 + at.which] = pair(i);
  }
  template <class Known>
  __device__ void dequantize_int4(const Known& known, const uint32_t (&codes)[4], const Place& at) {
    constexpr float kInt4Base = 128.0f;
    const auto own = [&](int i) { return codes[i] >> 4 * at.quad; };
    if constexpr (Known::kScales == CodeScales::kBf16) {
      const uint32_t scale = bf16_scale(known, at);
      put(at, [&](int i) { return int4_pair_times(own(i), scale); });
    } else {
      const UnitScale scale = known.scale(at.step, at.row, at.half);
      const float zero = kInt4Base + scale.zero;
      const float minus = -(zero * scale.factor);
      const auto weight = [&](float f) {
        return Known::kFuses ? __fmaf_rn(f, scale.factor, minus) : Known::weight(scale, 0, f - zero);
      };
      put(at, [&](int i) {
        const uint32_t pair = pair_of_codes(own(i));
        return pack_bf16(weight(low_of_pair(pair)), weight(high_of_pair(pair)));
      });
    }
  }
  template <class Known>
  __device__ void dequantize_table4(const Known& known, const uint32_t (&codes)[4], const Place& at) {
    constexpr float kByteBase = 0x1p23f + 128.0f;
    uint32_t own = 0;  // this lane's even codes of the four words, then the odd ones
#pragma unroll
    for (int i = 3; i >= 0; --i) own = own * 16 + (codes[i] >> 4 * at.quad & 0x000F000Fu);
    const uint32_t even = look_up(known.format.integers, own);
    const uint32_t odd = look_up(known.format.integers, own >> 16);
    const UnitScale scale = known.scale(at.step, at.row, at.half);
    const float zero = kByteBase + scale.zero;
    put(at, [&](int i) {
      const auto weight = [&](uint32_t bytes) { return Known::weight(scale, i / 2, byte_to_float(bytes, i) - zero); };
      return pack_bf16(weight(even), weight(odd));
    });
  }
  template <class Known>
  __device__ void dequantize_int8(const Known& known, const Place& at) {
    if constexpr (Known::kScales == CodeScales::kBf16) {
      const uint32_t scale = bf16_scale(known, at);
      put(at, [&](int i) { return mul_bf16x2(int8_pair_to_bf16(__byte_perm(at.bytes(i), 0, 0x4140u)), scale); });
    } else {
      const UnitScale scale = known.scale(at.step, at.row, at.half);
      put(at, [&](int i) {
        const uint32_t pair = int8_pair_to_bf16(__byte_perm(at.bytes(i), 0, 0x4140u));
        const auto weight = [&](float n) { return Known::weight(scale, i / 2, n - scale.zero); };
        return pack_bf16(weight(low_of_pair(pair)), weight(high_of_pair(pair)));
      });
    }
  }
  template <class Known>
  __device__ void dequantize_e4m3(const Known& known, const Place& at) {
    const float scale = *reinterpret_cast<const float*>(known.scale_at(at.step, at.row, at.half));
    uint32_t nans = 0;
    put(at, [&](int i) {
      const uint32_t bytes = at.bytes(i);
      nans |= (bytes & 0x7F7Fu) + 0x0101u;
      const uint32_t numbers = e4m3_pair_to_bf16(bytes, 0);
      return pack_bf16(low_of_pair(numbers) * scale, high_of_pair(numbers) * scale);
    });
    if ((nans & 0x8080u) == 0) return;  // as in nearly all checkpoints
    put(at, [&](int i) {
      const uint32_t bytes = at.bytes(i);
      const uint32_t pair = words_[i / 2][i % 2 * 2 + at.which];
      const uint32_t low = (bytes & 0x7Fu) == 0x7Fu ? 0x7FFFu : pair & 0xFFFFu;
      const uint32_t high = (bytes & 0x7F00u) == 0x7F00u ? 0x7FFF0000u : pair & 0xFFFF0000u;
      return low | high;
    });
  }
  template <class Known>
  __device__ static uint32_t bf16_scale(const Known& known, const Place& at) {
    const uint32_t scale = *reinterpret_cast<const uint16_t*>(known.scale_at(at.step, at.row, at.half));
    return scale | scale << 16;
  }

  uint32_t words_[2][4];
};

}  // namespace millrace::cuda
