#pragma once

// Vectors of 16 lanes in the compiler's own vector types, which it splits for narrower instruction sets. Included only
// by kernels.cc, once per instruction set, hence the unnamed namespace: nothing here may be shared between sets. For
// the same reason kernels use nothing from the standard library that could be emitted as a shared inline function.

#include <cstddef>
#include <cstdint>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

/// Says whether the set multiplies four int8 pairs in one instruction (VNNI, of AVX-512 or of AVX).
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#define MILLRACE_VNNI 1
#else
#define MILLRACE_VNNI 0
#endif

#define MILLRACE_INLINE inline __attribute__((always_inline))

namespace millrace::cpu {
namespace {

typedef float Vec __attribute__((vector_size(64)));
typedef uint32_t Bits __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));
constexpr int kLanes = 16;

template <class V, class T>
MILLRACE_INLINE V load_as(const T* from) {
  V value;
  __builtin_memcpy(&value, from, sizeof(V));
  return value;
}
template <class V, class T>
MILLRACE_INLINE void store_as(T* to, V value) {
  __builtin_memcpy(to, &value, sizeof(V));
}
MILLRACE_INLINE Vec load(const float* from) {
  return load_as<Vec>(from);
}
MILLRACE_INLINE void store(float* to, Vec value) {
  store_as(to, value);
}
/// Broadcasts `v` lane by lane. The compiler would treat 0 + value as an addition, which turns -0 into 0.
MILLRACE_INLINE Vec splat(float v) {
  return Vec{v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v};
}

/// Forces the compiler to compute the value before later instructions.
MILLRACE_INLINE void pin_in_register(Vec& value) {
#if defined(__AVX512F__) && !defined(MILLRACE_EMULATED_REGISTERS)
  asm volatile("" : "+v"(value));
#else
  (void)value;  // it has no register of its own there
#endif
}

/// Returns 16 copies of a 32-bit value. Without assembly the compiler chooses the load for floating point if one uses
/// the value. On Zen 4 that load takes a unit which shuffles, so that dots wait where codes are unpacked, too.
MILLRACE_INLINE Bits broadcast_word(const char* from) {
#if defined(__AVX512F__) && !defined(MILLRACE_EMULATED_REGISTERS)
  typedef uint32_t Word __attribute__((may_alias, aligned(1)));
  Bits words;
  asm("vpbroadcastd %1, %0" : "=v"(words) : "m"(*reinterpret_cast<const Word*>(from)));
  return words;
#else
  return Bits{} + load_as<uint32_t>(from);
#endif
}

MILLRACE_INLINE Vec fma(Vec a, Vec b, Vec c) {
#if defined(__FMA__)
  return __builtin_elementwise_fma(a, b, c);
#else
  return a * b + c;
#endif
}
MILLRACE_INLINE Vec max(Vec a, Vec b) {
  return a > b ? a : b;
}

/// Loads the first `count` lanes (0 to 16); the others are `fill`.
MILLRACE_INLINE Vec load_part(const float* from, int64_t count, float fill) {
  if (count == kLanes) return load(from);
  Vec value = splat(fill);
  __builtin_memcpy(&value, from, static_cast<size_t>(count) * sizeof(float));
  return value;
}
MILLRACE_INLINE void store_part(float* to, Vec value, int64_t count) {
  if (count == kLanes) return store(to, value);
  __builtin_memcpy(to, &value, static_cast<size_t>(count) * sizeof(float));
}

/// Halves a vector three times by combining lane i with lane i + half. Lanes 0 and 1 remain.
template <class Combine>
MILLRACE_INLINE float fold_lanes(Vec value, Combine combine) {
  typedef float Eight __attribute__((vector_size(32)));
  typedef float Four __attribute__((vector_size(16)));
  typedef float Two __attribute__((vector_size(8)));
  const Eight eight = combine(__builtin_shufflevector(value, value, 0, 1, 2, 3, 4, 5, 6, 7),
                              __builtin_shufflevector(value, value, 8, 9, 10, 11, 12, 13, 14, 15));
  const Four four =
      combine(__builtin_shufflevector(eight, eight, 0, 1, 2, 3), __builtin_shufflevector(eight, eight, 4, 5, 6, 7));
  const Two two = combine(__builtin_shufflevector(four, four, 0, 1), __builtin_shufflevector(four, four, 2, 3));
  return combine(two[0], two[1]);
}
MILLRACE_INLINE float lane_sum(Vec value) {
  return fold_lanes(value, [](auto a, auto b) __attribute__((always_inline)) { return a + b; });
}
MILLRACE_INLINE float lane_max(Vec value) {
  return fold_lanes(value, [](auto a, auto b) __attribute__((always_inline)) { return a > b ? a : b; });
}
MILLRACE_INLINE bool any_lane(Ints mask) {
  return __builtin_reduce_or(mask) != 0;
}

MILLRACE_INLINE Vec widen_bf16(Halves half) {
  return reinterpret_cast<Vec>(__builtin_convertvector(half, Bits) << 16);
}
MILLRACE_INLINE Halves narrow_bf16(Vec value) {
#if defined(__AVX512BF16__)
  return reinterpret_cast<Halves>(_mm512_cvtneps_pbh(reinterpret_cast<__m512>(value)));
#else
  const Bits word = reinterpret_cast<Bits>(value);
  const Bits rounded = (word + 0x7FFFu + ((word >> 16) & 1u)) >> 16;
  const Bits quiet = (word >> 16) | 0x40u;
  return __builtin_convertvector(value == value ? rounded : quiet, Halves);
#endif
}

/// Computes e^x to about 1 ulp between -87 and 88; 0 below, e^88 above, exactly 1 at 0, NaN of NaN. Polynomial: Cephes'
/// expf.
MILLRACE_INLINE Vec exp(Vec x) {
  const Vec below = x > splat(88.0f) ? splat(88.0f) : x;
  const Vec bounded = below < splat(-87.3f) ? splat(-87.3f) : below;
  const Vec scaled = fma(bounded, splat(1.44269504088896341f), splat(12582912.0f));
  const Vec whole = scaled - splat(12582912.0f);
  const Vec r = fma(whole, splat(2.12194440e-4f), fma(whole, splat(-0.693359375f), bounded));
  Vec p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  const Vec mantissa = fma(p * r, r, r) + 1.0f;
  const Ints exponent = (__builtin_convertvector(whole, Ints) + 127) << 23;
  const Vec value = mantissa * reinterpret_cast<Vec>(exponent);
  return x < splat(-87.3f) ? Vec{} : value;
}

/// Computes 2^x to about 2 ulp for x from -126 to 0 plus rounding; 0 below, exactly 1 at 0, NaN of NaN. The polynomial
/// is fitted to 2^x on [0, 1]. It minimises the largest relative error (8e-8) among those that are 1 at 0.
MILLRACE_INLINE Vec exp2_nonpositive(Vec x) {
  const auto fraction_power = [](Vec r) __attribute__((always_inline)) {
    Vec p = splat(1.8671300495e-3f);
    p = fma(p, r, splat(9.0170307085e-3f));
    p = fma(p, r, splat(5.5799912661e-2f));
    p = fma(p, r, splat(2.4016444385e-1f));
    p = fma(p, r, splat(6.9315129519e-1f));
    return fma(p, r, splat(1.0f));
  };
#if defined(__AVX512DQ__)
  constexpr int kFloor = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
  const auto power = reinterpret_cast<__m512>(x);
  const __mmask16 kept = _mm512_cmp_ps_mask(power, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
  const Vec r = reinterpret_cast<Vec>(_mm512_reduce_ps(power, kFloor));
  return reinterpret_cast<Vec>(_mm512_maskz_scalef_ps(kept, reinterpret_cast<__m512>(fraction_power(r)), power));
#else
  const Vec bounded = x < splat(-126.0f) ? splat(-126.0f) : x;
  const Vec whole = (bounded - splat(0.5f)) + splat(12582912.0f) - splat(12582912.0f);
  const Ints exponent = (__builtin_convertvector(whole, Ints) + 127) << 23;
  const Vec value = fraction_power(bounded - whole) * reinterpret_cast<Vec>(exponent);
  return x < splat(-126.0f) ? Vec{} : value;
#endif
}

/// Computes 1 / x to about 1 ulp where both are normal numbers.
MILLRACE_INLINE Vec reciprocal(Vec x) {
#if defined(__AVX512F__)
  const Vec estimate = reinterpret_cast<Vec>(_mm512_rcp14_ps(reinterpret_cast<__m512>(x)));
  return fma(estimate, fma(-x, estimate, splat(1.0f)), estimate);
#else
  return 1.0f / x;
#endif
}

/// Computes tanh(x) with an error of about 1e-7; ±1 far from 0, NaN of NaN.
MILLRACE_INLINE Vec tanh(Vec x) {
  return splat(1.0f) - reciprocal(exp(x * 2.0f) + 1.0f) * 2.0f;
}

}  // namespace
}  // namespace millrace::cpu
