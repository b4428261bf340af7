#pragma once

// Stores keys and values as codes of 8 bits with scales, and dequantizes them to bf16. The codes are those of the CPU
// backend.

#include "cuda/batch.cuh"

namespace millrace::cuda {

/// The byte offsets of a token's key and scales from the cache's start.
struct CodedToken {
  size_t key = 0;
  size_t scales = 0;
};
/// Returns the bytes from a key's codes to those of its value.
__device__ inline size_t coded_value_offset(const DeviceKvCache& cache) {
  return static_cast<size_t>(cache.kv_head_count) * cache.page_size * code_stride(cache.head_dim);
}
__device__ inline CodedToken coded_token(const DeviceKvCache& cache, uint32_t page, int32_t layer, int32_t head,
                                         int32_t slot) {
  const size_t begin = page * kv_page_bytes(cache) + layer * kv_layer_bytes(cache);
  const auto index = static_cast<size_t>(head * cache.page_size + slot);
  return {.key = begin + index * code_stride(cache.head_dim),
          .scales = begin + 2 * coded_value_offset(cache) + index * kv_scale_count(cache) * sizeof(uint32_t)};
}

/// The magnitude, as bits, from which a value counts as a fault: below it every code times its scale is finite.
constexpr uint32_t kCodedFaultBits = 0x7E800000u;  // 2^126
/// Values whose largest magnitude is below this become zeros, so that no scale is subnormal.
constexpr float kMinCodedMagnitude = 0x1p-100f;

/// Returns the bits of the largest magnitude of values [first, end), to every lane.
template <class Values>
__device__ uint32_t largest_magnitude_bits(const Values& values, int32_t first, int32_t end, int lane) {
  uint32_t largest = 0;
  for (int32_t i = first + lane; i < end; i += kLanes) {
    largest = max(largest, __float_as_uint(values[i]) & 0x7FFFFFFFu);
  }
  return __reduce_max_sync(kAllLanes, largest);
}

/// Returns the E4M3 number that is nearest to a value of at most 448, ties to even. Magnitudes below 2^-6 become zero.
__device__ inline uint8_t e4m3_code(float value) {
  constexpr uint32_t kMinNormal = 121u << 23;
  constexpr uint32_t kExponentOffset = 120u << 3;
  const uint32_t word = __float_as_uint(value);
  const uint32_t magnitude = word & 0x7FFFFFFFu;
  const uint32_t rounded = magnitude + 0x7FFFFu + (magnitude >> 20 & 1u);
  if (rounded < kMinNormal) return 0;
  return static_cast<uint8_t>((word >> 24 & 0x80u) | min((rounded >> 20) - kExponentOffset, 0x7Eu));
}

/// Where a key, a value or a latent becomes codes: `count` channels, of which `scale_channels` share a scale. Scales
/// lie `scale_stride` elements apart.
struct CodesOut {
  uint8_t* codes = nullptr;  // [code_stride of count]
  uint16_t* scales = nullptr;
  int32_t count = 0;
  int32_t scale_channels = 0;
  int32_t scale_stride = 1;
};

/// Encodes values [count]; one warp. The scale of channels with a magnitude of 2^126 or more, or a NaN, is NaN.
template <class Values>
__device__ void encode(KvElement element, const Values& values, int lane, const CodesOut& out) {
  const bool is_int8 = element == KvElement::kInt8;
  int32_t part = 0;
  for (int32_t first = 0; first < out.count; first += out.scale_channels, ++part) {
    const int32_t end = min(first + out.scale_channels, out.count);
    const uint32_t bits = largest_magnitude_bits(values, first, end, lane);
    const float largest = __uint_as_float(bits);
    uint32_t scale = 0;
    if (bits >= kCodedFaultBits) {
      scale = 0x7FC0u;
    } else if (largest >= kMinCodedMagnitude) {
      // Rounded up to bf16, so that no code saturates.
      scale = (__float_as_uint(largest / (is_int8 ? 127.0f : 448.0f)) + 0xFFFFu) >> 16;
    }
    const bool has_codes = bits < kCodedFaultBits && scale != 0;
    const float divisor = bf16_to_float(static_cast<uint16_t>(scale));
    for (int32_t i = first + lane; i < end; i += kLanes) {
      const float value = has_codes ? values[i] / divisor : 0.0f;
      out.codes[i] = is_int8 ? static_cast<uint8_t>(static_cast<int32_t>(rintf(value))) : e4m3_code(value);
    }
    if (lane == 0) out.scales[part * out.scale_stride] = static_cast<uint16_t>(scale);
  }
  for (int32_t i = out.count + lane; i < code_stride(out.count); i += kLanes) out.codes[i] = 0;
}

/// Stores a key and a value as codes; one warp. A value with a fault becomes zeros with a NaN key, as in bf16.
__device__ inline void store_codes(const DeviceKvCache& cache, const CodedToken& token, const float* key,
                                   const float* value, int lane) {
  auto* const data = static_cast<std::byte*>(cache.data);
  auto* const codes = reinterpret_cast<uint8_t*>(data + token.key);
  auto* const scales = reinterpret_cast<uint16_t*>(data + token.scales);
  uint8_t* const value_codes = codes + coded_value_offset(cache);
  if (largest_magnitude_bits(value, 0, cache.head_dim, lane) < kCodedFaultBits) {
    const int32_t width = cache.element == KvElement::kInt8 ? kInt8ScaleChannels : cache.head_dim;
    encode(cache.element, key, lane, {codes, scales, cache.head_dim, width, 2});
    encode(cache.element, value, lane, {value_codes, scales + 1, cache.head_dim, width, 2});
    return;
  }
  for (int32_t i = lane; i < code_stride(cache.head_dim); i += kLanes) codes[i] = value_codes[i] = 0;
  for (int32_t part = lane; part < kv_scale_count(cache); part += kLanes) {
    scales[2 * part] = 0x7FC0u;
    scales[2 * part + 1] = 0;
  }
}

/// Codes as pairs in bf16, of bytes 0 and 2 of a word and of bytes 1 and 3.
struct CodePairs {
  uint32_t even = 0;
  uint32_t odd = 0;
};

/// Returns four codes times scales: the first of two scales in bf16 belongs to bytes 0 and 1. A product is exact in
/// f32 and is rounded once.
template <KvElement kElement>
__device__ CodePairs dequantize_word(uint32_t word, uint32_t scales) {
  constexpr uint32_t kMinusZeros = 0x80008000u;
  CodePairs numbers;
  if constexpr (kElement == KvElement::kInt8) {
    numbers = {int8_pair_to_bf16(word), int8_pair_to_bf16(word >> 8)};
  } else {
    numbers = {high_e4m3_to_bf16(word << 8), high_e4m3_to_bf16(word)};
  }
  return {fma_bf16x2(numbers.even, scales, kMinusZeros), fma_bf16x2(numbers.odd, scales, kMinusZeros)};
}

/// Returns eight codes times a scale in bf16.
template <KvElement kElement>
__device__ uint4 dequantize_codes(uint2 codes, uint32_t scale) {
  const uint32_t twice = scale | scale << 16;
  const CodePairs first = dequantize_word<kElement>(codes.x, twice);
  const CodePairs second = dequantize_word<kElement>(codes.y, twice);
  return uint4{__byte_perm(first.even, first.odd, 0x5410u), __byte_perm(first.even, first.odd, 0x7632u),
               __byte_perm(second.even, second.odd, 0x5410u), __byte_perm(second.even, second.odd, 0x7632u)};
}
__device__ inline uint4 dequantize_codes(bool is_int8, uint2 codes, uint32_t scale) {
  return is_int8 ? dequantize_codes<KvElement::kInt8>(codes, scale) : dequantize_codes<KvElement::kE4M3>(codes, scale);
}

}  // namespace millrace::cuda
