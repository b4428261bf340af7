#pragma once

// Widens groups of 16 keys and values from codes of 8 bits to the operands of attention. Included only by kernels.cc.

#include "cpu/kernels.h"
#include "cpu/simd.h"

namespace millrace::cpu {
namespace {

/// Returns the numbers whose codes are the bytes `kByte` (0 or 1) of words. The upper halves of the words are zeros.
template <bool kInt8, int kByte>
MILLRACE_INLINE Vec decode_byte(Bits words) {
  constexpr int kToTop = 24 - 8 * kByte;
  if constexpr (kInt8) {
    return __builtin_convertvector(reinterpret_cast<Ints>(words << kToTop) >> 24, Vec);
  } else {
    // The exponents of E4M3 and f32 differ by 120 in bias. A code is zero or a normal number.
    const Bits magnitude = (words << (kToTop - 4)) & 0x07F00000u;
    return reinterpret_cast<Vec>((words << kToTop & 0x80000000u) | magnitude) * 0x1p120f;
  }
}

/// Calls body(first channel, end, index) for the channels of each scale.
template <class Body>
MILLRACE_INLINE void for_scales(const KvGroupCodes& group, Body&& body) {
  for (int first = 0, index = 0; first < group.padded_dim; first += group.scale_channels, ++index) {
    const int end = first + group.scale_channels;
    body(first, end < group.padded_dim ? end : group.padded_dim, index);
  }
}

/// The parts of a group.
struct KvCodeParts {
  explicit MILLRACE_INLINE KvCodeParts(const KvGroupCodes& group)
      : keys(reinterpret_cast<const char*>(group.codes)),
        values(keys + kGroupKeys * group.padded_dim),
        key_scales(values + kGroupKeys * group.padded_dim),
        value_scales(key_scales +
                     (group.padded_dim + group.scale_channels - 1) / group.scale_channels * kGroupKeys * 2),
        count(group.count) {}

  /// Returns the scales of 16 keys.
  [[nodiscard]] MILLRACE_INLINE Vec scales_of_keys(int index) const {
    return widen_bf16(load_as<Halves>(key_scales + index * kGroupKeys * 2));
  }
  /// Writes the scales of 16 values. They are zero where no token exists: codes there are those of an earlier one.
  MILLRACE_INLINE void copy_scales_of_values(int index, float* scales) const {
    const Ints lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    store(scales, lane < count ? widen_bf16(load_as<Halves>(value_scales + index * kGroupKeys * 2)) : Vec{});
  }

  const char* keys;
  const char* values;
  const char* key_scales;
  const char* value_scales;
  int count;
};

typedef uint8_t KvCodeBytes __attribute__((vector_size(16)));

template <bool kInt8>
MILLRACE_INLINE void widen_group_f32(const KvGroupCodes& group, float* k, float* v) {
  const KvCodeParts parts(group);
  const auto decoded = [](const char* codes) __attribute__((always_inline)) {
    return decode_byte<kInt8, 0>(__builtin_convertvector(load_as<KvCodeBytes>(codes), Bits));
  };
  for_scales(group, [&](int first, int end, int index) __attribute__((always_inline)) {
    const Vec scales = parts.scales_of_keys(index);
    for (int channel = first; channel < end; ++channel) {
      store(k + channel * kGroupKeys, decoded(parts.keys + channel * kGroupKeys) * scales);
    }
  });
  for_scales(group, [&](int first, int end, int index) __attribute__((always_inline)) {
    alignas(64) float scales[kGroupKeys];
    parts.copy_scales_of_values(index, scales);
    for (int lane = 0; lane < kGroupKeys; ++lane) {
      for (int channel = first; channel < end; channel += kLanes) {
        const int at = lane * group.padded_dim + channel;
        store(v + at, decoded(parts.values + at) * scales[lane]);
      }
    }
  });
}

void widen_kv_f32(const KvGroupCodes& group, std::byte* k, std::byte* v) {
  auto* const keys = reinterpret_cast<float*>(k);
  auto* const values = reinterpret_cast<float*>(v);
  group.has_int8 ? widen_group_f32<true>(group, keys, values) : widen_group_f32<false>(group, keys, values);
}

#if defined(__AVX512BF16__)
/// Returns words whose lower halves are `low` in bf16, and their upper halves `high`.
MILLRACE_INLINE Bits pairs_bf16(Vec low, Vec high) {
  typedef uint16_t AllHalves __attribute__((vector_size(64)));
  const auto both =
      reinterpret_cast<AllHalves>(_mm512_cvtne2ps_pbh(reinterpret_cast<__m512>(high), reinterpret_cast<__m512>(low)));
  return reinterpret_cast<Bits>(__builtin_shufflevector(both, both, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7,
                                                        23, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15,
                                                        31));
}

template <bool kInt8>
MILLRACE_INLINE void widen_group_bf16(const KvGroupCodes& group, std::byte* k, std::byte* v) {
  const KvCodeParts parts(group);
  for_scales(group, [&](int first, int end, int index) __attribute__((always_inline)) {
    const Vec scales = parts.scales_of_keys(index);
    for (int channel = first; channel < end; channel += 2) {
      const int at = channel * kGroupKeys;
      const Bits words = __builtin_convertvector(load_as<Halves>(parts.keys + at), Bits);
      store_as(k + at * 2, pairs_bf16(decode_byte<kInt8, 0>(words) * scales, decode_byte<kInt8, 1>(words) * scales));
    }
  });
  for_scales(group, [&](int first, int end, int index) __attribute__((always_inline)) {
    alignas(64) float scales[kGroupKeys];
    parts.copy_scales_of_values(index, scales);
    for (int lane = 0; lane < kGroupKeys; lane += 2) {
      for (int channel = first; channel < end; channel += kLanes) {
        const int at = lane * group.padded_dim + channel * 2;
        const Bits words = __builtin_convertvector(load_as<Halves>(parts.values + at), Bits);
        store_as(v + at * 2, pairs_bf16(decode_byte<kInt8, 0>(words) * scales[lane],
                                        decode_byte<kInt8, 1>(words) * scales[lane + 1]));
      }
    }
  });
}

void widen_kv_bf16(const KvGroupCodes& group, std::byte* k, std::byte* v) {
  group.has_int8 ? widen_group_bf16<true>(group, k, v) : widen_group_bf16<false>(group, k, v);
}
#endif

}  // namespace
}  // namespace millrace::cpu
