#pragma once

// Conversion of the bytes of an interleaved panel to bf16, by two table look-ups. Included only by kernels.cc.

#include "cpu/kernels.h"
#include "cpu/simd.h"

#if defined(__AVX512BF16__) && defined(__AVX512VBMI__)

namespace millrace::cpu {
namespace {

/// The low and the high bytes of the bf16 numbers of 128 magnitudes.
struct Bf16Bytes {
  alignas(64) uint8_t low[128] = {};
  alignas(64) uint8_t high[128] = {};

  /// Sets a number to value · 2^exponent; `value` is 0 to 127.
  constexpr void set(int at, int value, int exponent) {
    if (value == 0) return;
    int highest = 0;
    while (value >> (highest + 1) != 0) ++highest;
    const int bits = (127 + exponent + highest) << 7 | ((value << (7 - highest)) & 0x7F);
    low[at] = static_cast<uint8_t>(bits & 0xFF);
    high[at] = static_cast<uint8_t>(bits >> 8);
  }
};
constexpr Bf16Bytes kIntegerBytes = [] {
  Bf16Bytes bytes;
  for (int value = 0; value < 128; ++value) bytes.set(value, value, 0);
  return bytes;
}();
/// The codes of NaN stand for 480 here: their scale is NaN.
constexpr Bf16Bytes kE4M3Bytes = [] {
  Bf16Bytes bytes;
  for (int code = 0; code < 128; ++code) bytes.set(code, (code < 8 ? 0 : 8) + code % 8, (code < 8 ? 1 : code / 8) - 10);
  return bytes;
}();

/// Converts 64 bytes of a step of an interleaved panel to two vectors of bf16.
template <const Bf16Bytes& kTable>
MILLRACE_INLINE void dequantize_interleaved(const char* from, __m512bh& first, __m512bh& second) {
  const auto table = [](const uint8_t* bytes) __attribute__((always_inline)) { return load_as<__m512i>(bytes); };
  constexpr int kOrWithSign = 0xF8;  // a | (b & c)
  const auto bytes = load_as<__m512i>(from);
  const __m512i low = _mm512_permutex2var_epi8(table(kTable.low), bytes, table(kTable.low + 64));
  const __m512i magnitude = _mm512_permutex2var_epi8(table(kTable.high), bytes, table(kTable.high + 64));
  const __m512i high =
      _mm512_ternarylogic_epi32(magnitude, bytes, _mm512_set1_epi8(static_cast<char>(0x80)), kOrWithSign);
  first = reinterpret_cast<__m512bh>(_mm512_unpacklo_epi8(low, high));
  second = reinterpret_cast<__m512bh>(_mm512_unpackhi_epi8(low, high));
}

constexpr int kInterleavedStepBytes = kPanelColumns * 2;

}  // namespace
}  // namespace millrace::cpu

#endif
