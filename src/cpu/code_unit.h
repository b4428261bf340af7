#pragma once

// The units of a panel of codes: where their parts lie, their dot products with 8-bit rows, and the values that the
// integer sums stand for. Included only by kernels.cc.

#include "cpu/elementwise_kernels.h"
#include "cpu/w8a8_kernel.h"

namespace millrace::cpu {
namespace {

/// The parts of one unit of a panel.
struct CodeUnit {
  const char* scales;   ///< of its group
  const char* offsets;  ///< of its group: zero points or minimums
  const char* factors;  ///< of its own scales and minimums
  const char* codes;
};

/// Walks over the units of a panel.
class CodeCursor {
 public:
  MILLRACE_INLINE CodeCursor(const CodePanelFormat& format, const std::byte* panel)
      : at_(reinterpret_cast<const char*>(panel)),
        units_(format.units),
        header_bytes_(format.header_bytes()),
        factor_bytes_(format.factor_bytes()),
        code_bytes_(format.code_bytes()),
        offsets_at_(kPanelColumns * format.scale_bytes()) {}

  /// Returns the next unit.
  MILLRACE_INLINE CodeUnit take() {
    if (left_ == 0) {
      group_ = at_;
      at_ += header_bytes_;
      left_ = units_;
    }
    const CodeUnit unit = {group_, group_ + offsets_at_, at_, at_ + factor_bytes_};
    at_ = unit.codes + code_bytes_;
    --left_;
    return unit;
  }
  /// Returns the end of the units so far.
  [[nodiscard]] MILLRACE_INLINE const char* at() const { return at_; }

 private:
  const char* at_;
  const char* group_ = nullptr;
  int left_ = 0;
  int units_;
  int header_bytes_;
  int factor_bytes_;
  int code_bytes_;
  int offsets_at_;
};

#if defined(__AVX2__)
typedef int32_t HalfInts __attribute__((vector_size(32)));
MILLRACE_INLINE __m256i low_half(Ints both) {
  return reinterpret_cast<__m256i>(__builtin_shufflevector(both, both, 0, 1, 2, 3, 4, 5, 6, 7));
}
MILLRACE_INLINE __m256i high_half(Ints both) {
  return reinterpret_cast<__m256i>(__builtin_shufflevector(both, both, 8, 9, 10, 11, 12, 13, 14, 15));
}
MILLRACE_INLINE Ints join_halves(__m256i low, __m256i high) {
  return __builtin_shufflevector(reinterpret_cast<HalfInts>(low), reinterpret_cast<HalfInts>(high), 0, 1, 2, 3, 4, 5, 6,
                                 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
#endif

/// Says whether integers from a table are multiplied as signed bytes, since sums of unsigned ones overflow an int16.
#if defined(__AVX2__) && !MILLRACE_VNNI
constexpr bool kSignedCodeTables = true;
#else
constexpr bool kSignedCodeTables = false;
#endif

/// The integers of the 16 codes, four times.
struct CodeTable {
  alignas(64) uint8_t bytes[64];

  MILLRACE_INLINE explicit CodeTable(const CodePanelFormat& format) {
    const int subtracted = kSignedCodeTables && format.has_table ? format.offset : 0;
    for (int i = 0; i < 64; ++i) bytes[i] = static_cast<uint8_t>(format.table[i % 16] - subtracted);
  }

  /// Returns the integers of 64 codes.
  [[nodiscard]] MILLRACE_INLINE Ints look_up(Ints codes) const {
#if defined(__AVX512BW__)
    return reinterpret_cast<Ints>(_mm512_shuffle_epi8(load_as<__m512i>(bytes), reinterpret_cast<__m512i>(codes)));
#elif defined(__AVX2__)
    const auto table = load_as<__m256i>(bytes);
    return join_halves(_mm256_shuffle_epi8(table, low_half(codes)), _mm256_shuffle_epi8(table, high_half(codes)));
#else
    typedef uint8_t CodeBytes __attribute__((vector_size(64)));
    auto out = reinterpret_cast<CodeBytes>(codes);
    for (int i = 0; i < 64; ++i) out[i] = bytes[out[i]];
    return reinterpret_cast<Ints>(out);
#endif
  }
};

/// What the columns of a unit are, which decides how wide their sums must be.
enum class CodeColumns : uint8_t {
  kNibbles,   ///< integers from 0 to 15
  kUnsigned,  ///< greater integers: to 63, or to 255 with VNNI
  kSigned,
};

/// Adds up the products of 16 columns of a unit with four inputs at a time, from `addend` on.
#if MILLRACE_VNNI
template <CodeColumns kColumns>
struct CodeDot {
  using Sum = Ints;
  static MILLRACE_INLINE Sum start(Ints addend) { return addend; }
  static MILLRACE_INLINE void add(Sum& sum, Ints columns, const char* lhs) {
    sum = Int8Step(columns).add_dot(sum, lhs);
  }
  static MILLRACE_INLINE Ints total(const Sum& sum, Ints) { return sum; }
};
#elif defined(__AVX2__)
/// Adds products in pairs as int16, of which 16 of 15 · 127 fit, and 2 of 63 · 127.
template <CodeColumns kColumns>
struct CodeDot {
  struct Sum {
    __m256i low;
    __m256i high;
  };
  static MILLRACE_INLINE Sum start(Ints) { return {}; }
  static MILLRACE_INLINE void add(Sum& sum, Ints columns, const char* lhs) {
    const __m256i inputs = _mm256_set1_epi32(load_as<int32_t>(lhs));
    add_half(sum.low, low_half(columns), inputs);
    add_half(sum.high, high_half(columns), inputs);
  }
  static MILLRACE_INLINE Ints total(const Sum& sum, Ints addend) {
    return join_halves(total_half(sum.low), total_half(sum.high)) + addend;
  }

 private:
  static MILLRACE_INLINE void add_half(__m256i& sum, __m256i columns, __m256i inputs) {
    if constexpr (kColumns == CodeColumns::kNibbles) {
      sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(columns, inputs));
      return;
    }
    constexpr bool kSigned = kColumns == CodeColumns::kSigned;
    const __m256i pairs = kSigned ? _mm256_maddubs_epi16(_mm256_abs_epi8(columns), _mm256_sign_epi8(inputs, columns))
                                  : _mm256_maddubs_epi16(columns, inputs);
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  static MILLRACE_INLINE __m256i total_half(__m256i sum) {
    return kColumns == CodeColumns::kNibbles ? _mm256_madd_epi16(sum, _mm256_set1_epi16(1)) : sum;
  }
};
#else
template <CodeColumns kColumns>
struct CodeDot {
  using Sum = Ints;
  static MILLRACE_INLINE Sum start(Ints addend) { return addend; }
  static MILLRACE_INLINE void add(Sum& sum, Ints columns, const char* lhs) {
    const auto bytes = reinterpret_cast<Bits>(columns);
    for (int i = 0; i < kInt8Depth; ++i) {
      sum += reinterpret_cast<Ints>((bytes >> static_cast<uint32_t>(8 * i)) & 0xFFu) *
             splat_int(static_cast<int8_t>(lhs[i]));
    }
  }
  static MILLRACE_INLINE Ints total(const Sum& sum, Ints) { return sum; }
};
#endif

/// What turns the integer sums of 16 columns of a unit into values.
struct CodeTerms {
  Vec scale;
  Vec offset;  ///< zero points or minimums
};

/// Sets a member of the terms of 16 columns each to load(v).
template <int V, class Load>
MILLRACE_INLINE void set_code_terms(CodeTerms (&terms)[V], Vec CodeTerms::* member, Load&& load) {
#pragma clang loop unroll(full)
  for (int v = 0; v < V; ++v) terms[v].*member = load(v);
}

/// Sets a member to scales or minimums, as f32.
template <int V>
MILLRACE_INLINE void load_code_scales(CodeScaleType type, const char* from, CodeTerms (&terms)[V],
                                      Vec CodeTerms::* member) {
  switch (type) {
    case CodeScaleType::kF16:
      return set_code_terms(terms, member, [&](int v) __attribute__((always_inline)) {
        return widen_binary16(load_as<Halves>(from + v * kLanes * 2));
      });
    case CodeScaleType::kBF16:
      return set_code_terms(terms, member, [&](int v) __attribute__((always_inline)) {
        return widen_bf16(load_as<Halves>(from + v * kLanes * 2));
      });
    case CodeScaleType::kF32:
      return set_code_terms(terms, member,
                            [&](int v) __attribute__((always_inline)) { return load_as<Vec>(from + v * kLanes * 4); });
  }
}

/// Sets offsets to zero points, as f32.
template <int V>
MILLRACE_INLINE void load_zero_points(const char* from, CodeTerms (&terms)[V]) {
  set_code_terms(terms, &CodeTerms::offset, [&](int v) __attribute__((always_inline)) {
    typedef uint8_t Codes __attribute__((vector_size(16)));
    return __builtin_convertvector(__builtin_convertvector(load_as<Codes>(from + v * kLanes), Ints), Vec);
  });
}

/// Multiplies a member by int8 factors.
template <int V>
MILLRACE_INLINE void apply_code_factors(const char* factors, CodeTerms (&terms)[V], Vec CodeTerms::* member) {
  set_code_terms(terms, member, [&](int v) __attribute__((always_inline)) {
    return terms[v].*member * widen_bytes(factors + v * kLanes);
  });
}

/// Loads the terms of V * 16 columns from vector `first` of the panel on. `part` is the half of the unit, if halves
/// have factors. Minimums count with the first half, unless halves have factors of them, too.
template <int V>
MILLRACE_INLINE void load_code_terms(const CodePanelFormat& format, const CodeUnit& unit, int first, int part,
                                     CodeTerms (&terms)[V]) {
  constexpr auto kScale = &CodeTerms::scale;
  constexpr auto kOffset = &CodeTerms::offset;
  const int column = first * kLanes;
  load_code_scales(format.scale_type, unit.scales + column * format.scale_bytes(), terms, kScale);
  const char* const half_factors = unit.factors + part * kPanelColumns + column;
  if (format.half_type == CodeHalfType::kE4M3) {
    set_code_terms(terms, kScale, [&](int v) __attribute__((always_inline)) {
      return terms[v].scale * widen_e4m3(half_factors + v * kLanes);
    });
  }
  if (format.half_type == CodeHalfType::kInt8) apply_code_factors(half_factors, terms, kScale);
  if (format.has_factors) apply_code_factors(unit.factors + column, terms, kScale);
  if (format.offset_type == CodeOffsetType::kZeroPoints) {
    load_zero_points(unit.offsets + column, terms);
  } else if (format.offset_type == CodeOffsetType::kMinimums && (part == 0 || format.has_half_minimums)) {
    load_code_scales(format.scale_type, unit.offsets + column * format.scale_bytes(), terms, kOffset);
    if (format.has_factors) apply_code_factors(unit.factors + kPanelColumns + column, terms, kOffset);
    if (format.has_half_minimums) apply_code_factors(half_factors + 2 * kPanelColumns, terms, kOffset);
  } else {
    set_code_terms(terms, kOffset, [](int) __attribute__((always_inline)) { return Vec{}; });
  }
}
MILLRACE_INLINE CodeTerms load_code_terms(const CodePanelFormat& format, const CodeUnit& unit, int vec, int part) {
  CodeTerms terms[1];
  load_code_terms(format, unit, vec, part, terms);
  return terms[0];
}

/// An LHS row's part in a unit, or in its half where halves have minimums.
struct CodeLhs {
  float scale;
  int32_t input_sum;  ///< Σ of the int8 inputs

  CodeLhs() = default;
  MILLRACE_INLINE explicit CodeLhs(const LhsQuantParams& params)
      : scale(params.scale), input_sum(-(params.compensation >> 7)) {}
};

/// Returns -offset · Σ of half a unit's inputs in all lanes, for offsets from 0 to 128.
MILLRACE_INLINE Ints half_addend(const char* inputs, int offset) {
#if defined(__AVX2__)
  typedef int32_t Four __attribute__((vector_size(16)));
  const __m128i pairs = _mm_maddubs_epi16(_mm_set1_epi8(static_cast<char>(offset)), load_as<__m128i>(inputs));
  const auto sums = reinterpret_cast<Four>(_mm_madd_epi16(pairs, _mm_set1_epi16(-1)));
  const Four two = sums + __builtin_shufflevector(sums, sums, 2, 3, 0, 1);
  const Four all = two + __builtin_shufflevector(two, two, 1, 0, 3, 2);
  return __builtin_shufflevector(all, all, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
#else
  typedef int8_t Inputs __attribute__((vector_size(16)));
  return splat_int(-offset * __builtin_reduce_add(__builtin_convertvector(load_as<Inputs>(inputs), Ints)));
#endif
}

/// Returns Σ of half a unit's inputs.
MILLRACE_INLINE int32_t half_input_sum(const char* inputs) {
  return -half_addend(inputs, 1)[0];
}

/// Returns what the sums of a unit, or of its half with those inputs, start with for the constant offset of its
/// integers.
template <bool kHalf>
MILLRACE_INLINE Ints code_addend(const LhsQuantParams& params, int offset, const char* inputs) {
  if constexpr (kHalf) return half_addend(inputs, offset);
  return splat_int(offset * (params.compensation >> 7));
}

template <CodeOffsetType kType>
struct CodeOffsetConstant {
  static constexpr CodeOffsetType kValue = kType;
};
/// Calls body with the type of offsets as a compile-time constant.
template <class Body>
MILLRACE_INLINE void with_code_offsets(CodeOffsetType type, Body&& body) {
  switch (type) {
    case CodeOffsetType::kConstant: return body(CodeOffsetConstant<CodeOffsetType::kConstant>{});
    case CodeOffsetType::kZeroPoints: return body(CodeOffsetConstant<CodeOffsetType::kZeroPoints>{});
    case CodeOffsetType::kMinimums: return body(CodeOffsetConstant<CodeOffsetType::kMinimums>{});
  }
}

/// Returns acc plus the value of 16 columns' sums, which began with code_addend(). The sums and zero points are
/// whole numbers that f32 holds.
template <CodeOffsetType kType>
MILLRACE_INLINE Vec add_code_sums(Ints sum, const CodeTerms& terms, const CodeLhs& lhs, Vec acc) {
  if constexpr (kType == CodeOffsetType::kConstant) {
    return fma(__builtin_convertvector(sum, Vec), terms.scale * lhs.scale, acc);
  } else if constexpr (kType == CodeOffsetType::kZeroPoints) {
    const Vec shifted = __builtin_convertvector(sum, Vec) - terms.offset * static_cast<float>(lhs.input_sum);
    return fma(shifted, terms.scale * lhs.scale, acc);
  } else {
    const Vec scaled = fma(__builtin_convertvector(sum, Vec), terms.scale * lhs.scale, acc);
    return fma(terms.offset, splat(static_cast<float>(lhs.input_sum) * lhs.scale), scaled);
  }
}

/// Returns the constant that a kernel still subtracts from integers. Codes of 8 bits are signed where tables are.
MILLRACE_INLINE int code_offset(const CodePanelFormat& format) {
  if (kSignedCodeTables && format.bits == 8) return format.offset - 128;
  return kSignedCodeTables && format.has_table ? 0 : format.offset;
}

}  // namespace
}  // namespace millrace::cpu
