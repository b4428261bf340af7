#pragma once

// The instructions of AVX-512, AVX-VNNI and AMX that src/cpu's kernels use, in vector types that any compiler splits
// and plain loops. Included before kernels.cc, so that its paths for processors that are not at hand run on the one
// that is. What an instruction does is from Intel's Software Developer's Manual, volume 2, but subnormal numbers are
// kept, which those of bf16 flush: of them only the tile instruction does. A tile instruction that would fault ends the
// program.

#define MILLRACE_EMULATED_REGISTERS 1  // vectors of 64 bytes have no register

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace millrace::test {
/// Reports an instruction that would have faulted and ends the program.
[[noreturn]] void emulated_fault(const char* instruction);
}  // namespace millrace::test

namespace {
namespace emulated {

#define EMULATED inline __attribute__((always_inline))

typedef float Floats __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef int32_t SignedWords __attribute__((vector_size(64)));
typedef int8_t SignedBytes __attribute__((vector_size(64)));
typedef uint8_t Bytes __attribute__((vector_size(64)));
typedef int16_t Shorts __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));
typedef _Float16 Binary16 __attribute__((vector_size(32)));
constexpr int kWords = 16;

EMULATED Floats low_bf16(Words pair) {
  return reinterpret_cast<Floats>(pair << 16);
}
EMULATED Floats high_bf16(Words pair) {
  return reinterpret_cast<Floats>(pair & 0xFFFF0000u);
}

EMULATED Floats splat(float value) {
  return Floats{} + value;
}

/// Adds the high product first and rounds each sum.
EMULATED __m512 dpbf16_ps(__m512 sum, __m512bh a, __m512bh b) {
  const auto x = reinterpret_cast<Words>(a), y = reinterpret_cast<Words>(b);
  Floats acc = reinterpret_cast<Floats>(sum);
  acc = __builtin_elementwise_fma(high_bf16(x), high_bf16(y), acc);
  return reinterpret_cast<__m512>(__builtin_elementwise_fma(low_bf16(x), low_bf16(y), acc));
}

/// Rounds to nearest, ties to even; NaNs become quiet.
EMULATED Halves to_bf16(Floats value) {
  const auto word = reinterpret_cast<Words>(value);
  const Words rounded = (word + 0x7FFFu + (word >> 16 & 1u)) >> 16;
  return __builtin_convertvector(value == value ? rounded : (word >> 16 | 0x40u), Halves);
}
EMULATED __m256bh cvtneps_pbh(__m512 value) {
  return reinterpret_cast<__m256bh>(to_bf16(reinterpret_cast<Floats>(value)));
}
/// Puts the second operand into the lower half.
EMULATED __m512bh cvtne2ps_pbh(__m512 high, __m512 low) {
  const Halves parts[2] = {to_bf16(reinterpret_cast<Floats>(low)), to_bf16(reinterpret_cast<Floats>(high))};
  __m512bh both;
  __builtin_memcpy(&both, parts, sizeof both);
  return both;
}
EMULATED __m512 cvtph_ps(__m256i half) {
  return reinterpret_cast<__m512>(__builtin_convertvector(reinterpret_cast<Binary16>(half), Floats));
}

/// Multiplies unsigned bytes of `a` by signed bytes of `b`.
EMULATED __m512i dpbusd_epi32(__m512i sum, __m512i a, __m512i b) {
  auto acc = reinterpret_cast<SignedWords>(sum);
  const auto x = reinterpret_cast<Bytes>(a);
  const auto y = reinterpret_cast<SignedBytes>(b);
  for (int i = 0; i < 4 * kWords; ++i) acc[i / 4] += int32_t{x[i]} * y[i];
  return reinterpret_cast<__m512i>(acc);
}
EMULATED __m256i dpbusd_avx_epi32(__m256i sum, __m256i a, __m256i b) {
  typedef int32_t HalfWords __attribute__((vector_size(32)));
  typedef int8_t HalfSignedBytes __attribute__((vector_size(32)));
  typedef uint8_t HalfBytes __attribute__((vector_size(32)));
  auto acc = reinterpret_cast<HalfWords>(sum);
  const auto x = reinterpret_cast<HalfBytes>(a);
  const auto y = reinterpret_cast<HalfSignedBytes>(b);
  for (int i = 0; i < 2 * kWords; ++i) acc[i / 4] += int32_t{x[i]} * y[i];
  return reinterpret_cast<__m256i>(acc);
}
EMULATED __m512i madd_epi16(__m512i a, __m512i b) {
  const auto x = reinterpret_cast<Shorts>(a), y = reinterpret_cast<Shorts>(b);
  SignedWords sums{};
  for (int i = 0; i < 2 * kWords; ++i) sums[i / 2] += int32_t{x[i]} * y[i];
  return reinterpret_cast<__m512i>(sums);
}

/// Computes the reciprocal to 14 bits, as coarse as the instruction may be.
EMULATED __m512 rcp14_ps(__m512 value) {
  const auto exact = reinterpret_cast<Words>(1.0f / reinterpret_cast<Floats>(value));
  return reinterpret_cast<__m512>(exact & ~((1u << 9) - 1));
}
EMULATED Floats floor_of(Floats value) {
  return __builtin_elementwise_floor(value);
}
EMULATED __m512 reduce_ps(__m512 value, int how) {
  if (how != (_MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)) millrace::test::emulated_fault("vreduceps");
  const auto x = reinterpret_cast<Floats>(value);
  return reinterpret_cast<__m512>(x - floor_of(x));
}
EMULATED __m512 maskz_scalef_ps(__mmask16 kept, __m512 value, __m512 exponent) {
  Floats out{};
  for (int i = 0; i < kWords; ++i) {
    if ((kept >> i & 1) == 0) continue;
    const bool is_number = exponent[i] == exponent[i];
    const float bounded = __builtin_fminf(__builtin_fmaxf(exponent[i], -512.0f), 512.0f);  // beyond any f32
    out[i] = is_number ? __builtin_ldexpf(value[i], static_cast<int>(__builtin_floorf(bounded))) : exponent[i];
  }
  return reinterpret_cast<__m512>(out);
}
EMULATED __mmask16 cmp_ps_mask(__m512 a, __m512 b, int predicate) {
  if (predicate != _CMP_NLT_UQ) millrace::test::emulated_fault("vcmpps");
  unsigned mask = 0;
  for (int i = 0; i < kWords; ++i) mask |= (a[i] < b[i] ? 0u : 1u) << i;
  return static_cast<__mmask16>(mask);
}
EMULATED __mmask16 movepi32_mask(__m512i value) {
  const auto words = reinterpret_cast<SignedWords>(value);
  unsigned mask = 0;
  for (int i = 0; i < kWords; ++i) mask |= (words[i] < 0 ? 1u : 0u) << i;
  return static_cast<__mmask16>(mask);
}
EMULATED __m512i maskz_compress_epi32(__mmask16 mask, __m512i value) {
  const auto words = reinterpret_cast<SignedWords>(value);
  SignedWords out{};
  int count = 0;
  for (int i = 0; i < kWords; ++i) {
    if ((mask >> i & 1) != 0) out[count++] = words[i];
  }
  return reinterpret_cast<__m512i>(out);
}
/// Looks up bytes of two tables by the low seven bits of each index.
EMULATED __m512i permutex2var_epi8(__m512i first, __m512i index, __m512i second) {
  const auto low = reinterpret_cast<Bytes>(first), high = reinterpret_cast<Bytes>(second);
  const auto at = reinterpret_cast<Bytes>(index);
  Bytes out{};
  for (int i = 0; i < 4 * kWords; ++i) out[i] = (at[i] & 64) != 0 ? high[at[i] & 63] : low[at[i] & 63];
  return reinterpret_cast<__m512i>(out);
}
/// Looks up bytes of 16-byte parts by the low four bits of each index; zero where its highest bit is set.
EMULATED __m512i shuffle_epi8(__m512i bytes, __m512i index) {
  const auto from = reinterpret_cast<Bytes>(bytes), at = reinterpret_cast<Bytes>(index);
  Bytes out{};
  for (int i = 0; i < 4 * kWords; ++i) out[i] = (at[i] & 128) != 0 ? 0 : from[i / 16 * 16 + (at[i] & 15)];
  return reinterpret_cast<__m512i>(out);
}
EMULATED __m512i mask_permutexvar_epi8(__m512i kept, __mmask64 mask, __m512i index, __m512i bytes) {
  const auto from = reinterpret_cast<Bytes>(bytes), at = reinterpret_cast<Bytes>(index);
  auto out = reinterpret_cast<Bytes>(kept);
  for (int i = 0; i < 4 * kWords; ++i) {
    if ((mask >> i & 1) != 0) out[i] = from[at[i] & 63];
  }
  return reinterpret_cast<__m512i>(out);
}
EMULATED __m512i ternarylogic_epi32(__m512i a, __m512i b, __m512i c, int function) {
  if (function != 0xF8) millrace::test::emulated_fault("vpternlogd");
  return reinterpret_cast<__m512i>(reinterpret_cast<Words>(a) |
                                   (reinterpret_cast<Words>(b) & reinterpret_cast<Words>(c)));
}
/// Interleaves, in each 16 bytes, the lower or the upper eight bytes of both operands.
EMULATED __m512i unpack_epi8(__m512i a, __m512i b, int first) {
  const auto x = reinterpret_cast<Bytes>(a), y = reinterpret_cast<Bytes>(b);
  Bytes out{};
  for (int i = 0; i < 4 * kWords; ++i) {
    const int at = i / 16 * 16 + first + i % 16 / 2;
    out[i] = i % 2 == 0 ? x[at] : y[at];
  }
  return reinterpret_cast<__m512i>(out);
}
EMULATED __m512i unpacklo_epi8(__m512i a, __m512i b) {
  return unpack_epi8(a, b, 0);
}
EMULATED __m512i unpackhi_epi8(__m512i a, __m512i b) {
  return unpack_epi8(a, b, 8);
}
EMULATED __m512i set1_epi8(char value) {
  return reinterpret_cast<__m512i>(Bytes{} + static_cast<uint8_t>(value));
}
EMULATED __m512 set1_ps(float value) {
  return reinterpret_cast<__m512>(splat(value));
}
EMULATED __m512i set1_epi32(int value) {
  return reinterpret_cast<__m512i>(SignedWords{} + value);
}

// Tiles: of each thread, eight of at most 16 rows of 64 bytes.

struct Tile {
  int rows = 0;
  int row_bytes = 0;
  alignas(64) uint8_t data[16][64] = {};
};
struct Tiles {
  bool configured = false;
  Tile tile[8];
};
inline thread_local Tiles tiles;

inline Tile& tile_at(int number, const char* instruction) {
  if (!tiles.configured || tiles.tile[number].rows == 0) millrace::test::emulated_fault(instruction);
  return tiles.tile[number];
}

/// Reads the fields of palette 1: 16 bytes, then 16 widths and 16 heights. Missing tiles have zeros.
inline void tile_loadconfig(const void* from) {
  uint8_t bytes[64];
  __builtin_memcpy(bytes, from, sizeof bytes);
  bool valid = bytes[0] == 1;
  for (int i = 1; i < 16; ++i) valid = valid && bytes[i] == 0;
  for (int number = 0; number < 16; ++number) {
    const int row_bytes = bytes[16 + 2 * number] | bytes[17 + 2 * number] << 8;
    const int rows = bytes[48 + number];
    if (number < 8) {
      tiles.tile[number] = {rows, row_bytes, {}};
      valid = valid && rows <= 16 && row_bytes <= 64 && (rows == 0) == (row_bytes == 0);
    } else {
      valid = valid && (row_bytes == 0 || rows == 0);
    }
  }
  if (!valid) millrace::test::emulated_fault("ldtilecfg");
  tiles.configured = true;
}
inline void tile_release() {
  tiles = {};
}

inline void tile_zero(int number) {
  Tile& tile = tile_at(number, "tilezero");
  __builtin_memset(tile.data, 0, sizeof tile.data);
}
inline void tile_loadd(int number, const void* from, size_t stride) {
  Tile& tile = tile_at(number, "tileloadd");
  __builtin_memset(tile.data, 0, sizeof tile.data);
  for (int row = 0; row < tile.rows; ++row) {
    __builtin_memcpy(tile.data[row], static_cast<const char*>(from) + static_cast<size_t>(row) * stride,
                     static_cast<size_t>(tile.row_bytes));
  }
}
inline void tile_stored(int number, void* to, size_t stride) {
  const Tile& tile = tile_at(number, "tilestored");
  for (int row = 0; row < tile.rows; ++row) {
    __builtin_memcpy(static_cast<char*>(to) + static_cast<size_t>(row) * stride, tile.data[row],
                     static_cast<size_t>(tile.row_bytes));
  }
}

/// The tiles of a multiplication, whose shapes must fit.
struct Operands {
  Tile& sum;
  const Tile& a;
  const Tile& b;
};
inline Operands operands(int sum, int a, int b, const char* instruction) {
  const Operands all = {tile_at(sum, instruction), tile_at(a, instruction), tile_at(b, instruction)};
  const bool fit = sum != a && sum != b && a != b && all.sum.rows == all.a.rows &&
                   all.sum.row_bytes == all.b.row_bytes && all.a.row_bytes == 4 * all.b.rows &&
                   all.sum.row_bytes % 4 == 0;
  if (!fit) millrace::test::emulated_fault(instruction);
  return all;
}
template <class V>
EMULATED V row_of(const Tile& tile, int row) {
  V value;
  __builtin_memcpy(&value, tile.data[row], sizeof value);
  return value;
}
EMULATED Words word_of(const Tile& tile, int row, int word) {
  uint32_t value;
  __builtin_memcpy(&value, tile.data[row] + 4 * word, sizeof value);
  return Words{} + value;
}

/// Sums the low and the high products separately, then together, then adds them to the tile. Not inlined, so that no
/// operation moves out of the surrounding code.
__attribute__((noinline)) inline void add_bf16_products(const Operands& tile) {
  for (int row = 0; row < tile.sum.rows; ++row) {
    Floats low{}, high{};
    for (int step = 0; step < tile.b.rows; ++step) {
      const Words left = word_of(tile.a, row, step), right = row_of<Words>(tile.b, step);
      low = __builtin_elementwise_fma(low_bf16(left), low_bf16(right), low);
      high = __builtin_elementwise_fma(high_bf16(left), high_bf16(right), high);
    }
    const Floats added = row_of<Floats>(tile.sum, row) + (low + high);
    __builtin_memcpy(tile.sum.data[row], &added, static_cast<size_t>(tile.sum.row_bytes));
  }
}
inline void tile_dpbf16ps(int sum, int a, int b) {
  constexpr unsigned kFlushSubnormals = 0x8040;
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | kFlushSubnormals);
  add_bf16_products(operands(sum, a, b, "tdpbf16ps"));
  _mm_setcsr(before);
}
/// Multiplies signed bytes of `a` by unsigned bytes of `b`.
inline void tile_dpbsud(int sum, int a, int b) {
  const Operands tile = operands(sum, a, b, "tdpbsud");
  for (int row = 0; row < tile.sum.rows; ++row) {
    for (int column = 0; column < tile.sum.row_bytes / 4; ++column) {
      int32_t added;
      __builtin_memcpy(&added, tile.sum.data[row] + 4 * column, sizeof added);
      for (int byte = 0; byte < tile.a.row_bytes; ++byte) {
        added += static_cast<int8_t>(tile.a.data[row][byte]) * int32_t{tile.b.data[byte / 4][4 * column + byte % 4]};
      }
      __builtin_memcpy(tile.sum.data[row] + 4 * column, &added, sizeof added);
    }
  }
}

#undef EMULATED

}  // namespace emulated
}  // namespace

// Some of these are macros already.
#undef _mm512_cmp_ps_mask
#undef _mm512_reduce_ps
#undef _mm512_ternarylogic_epi32
#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#undef _tile_dpbsud
#define _mm512_set1_ps emulated::set1_ps
#define _mm512_set1_epi32 emulated::set1_epi32
#define _mm512_cmp_ps_mask emulated::cmp_ps_mask
#define _mm512_reduce_ps emulated::reduce_ps
#define _mm512_maskz_scalef_ps emulated::maskz_scalef_ps
#define _mm512_rcp14_ps emulated::rcp14_ps
#define _mm512_cvtph_ps emulated::cvtph_ps
#define _mm512_movepi32_mask emulated::movepi32_mask
#define _mm512_maskz_compress_epi32 emulated::maskz_compress_epi32
#define _mm512_permutex2var_epi8 emulated::permutex2var_epi8
#define _mm512_shuffle_epi8 emulated::shuffle_epi8
#define _mm512_mask_permutexvar_epi8 emulated::mask_permutexvar_epi8
#define _mm512_ternarylogic_epi32 emulated::ternarylogic_epi32
#define _mm512_unpacklo_epi8 emulated::unpacklo_epi8
#define _mm512_unpackhi_epi8 emulated::unpackhi_epi8
#define _mm512_set1_epi8 emulated::set1_epi8
#define _mm512_madd_epi16 emulated::madd_epi16
#define _mm512_dpbusd_epi32 emulated::dpbusd_epi32
#define _mm256_dpbusd_avx_epi32 emulated::dpbusd_avx_epi32
#define _mm512_dpbf16_ps emulated::dpbf16_ps
#define _mm512_cvtneps_pbh emulated::cvtneps_pbh
#define _mm512_cvtne2ps_pbh emulated::cvtne2ps_pbh
#define _tile_loadconfig emulated::tile_loadconfig
#define _tile_release emulated::tile_release
#define _tile_zero emulated::tile_zero
#define _tile_loadd emulated::tile_loadd
#define _tile_stored emulated::tile_stored
#define _tile_dpbf16ps emulated::tile_dpbf16ps
#define _tile_dpbsud emulated::tile_dpbsud
