#pragma once

// GEMM of panels of codes of 2, 3, 5, 6 or 8 bits with 8-bit rows. Within a unit of 32 summed elements, or its half
// where halves have factors, the sums are integers, equal for every instruction set and path. Units are added in f32 in
// order. Included only by kernels.cc.

#include "cpu/code_run_kernel.h"
#include "cpu/nibble_kernel.h"

namespace millrace::cpu {
namespace {

/// Units that stay in the first-level cache, 2 KB each, while tiles of rows pass over them.
constexpr int64_t kSharedByteUnits = 8;
static_assert(kSharedByteUnits <= kUnpackedUnits);

/// Runs per loop iteration. With a whole unit of several rows of bytes the compiler loads all inputs first, beyond the
/// registers.
template <int kBits, int R>
constexpr int kRunUnroll = !kWideTiles || kBits != 8 ? 1
                           : R == 1                  ? 4
                                                     : 2;

/// What has factors for each half of a unit.
enum class CodeHalves : uint8_t { kNone, kScales, kScalesAndMinimums };

/// The codes of a panel at compile time.
template <int kCodeBits, CodeOffsetType kOffsetType, CodeHalves kFactors>
struct ByteCodes {
  static constexpr int kBits = kCodeBits;
  static constexpr CodeOffsetType kType = kOffsetType;
  static constexpr CodeHalves kHalfFactors = kFactors;
  static constexpr int kParts = kFactors == CodeHalves::kNone ? 1 : 2;  ///< sums per unit
  static constexpr CodeColumns kColumns = kCodeBits == 8 && kSignedCodeTables ? CodeColumns::kSigned
                                          : kCodeBits < kNibbleBits           ? CodeColumns::kNibbles
                                                                              : CodeColumns::kUnsigned;
};

/// What is subtracted from the sums of codes of 8 bits with an input, times the input: 128 times -1, 0 or 1.
template <CodeOffsetType kType>
constexpr int kByteOffsets = (kType == CodeOffsetType::kZeroPoints ? 0 : 1) - (kSignedCodeTables ? 1 : 0);

/// The constant that is subtracted from the integers of codes, as they are in the panel.
template <class Codes>
MILLRACE_INLINE int byte_offset(const CodePanelFormat& format) {
  return Codes::kBits == 8 ? kByteOffsets<Codes::kType> * 128 : format.offset;
}

/// The scales, and the zero points or minimums, of V * 16 columns of a group. The terms are those of load_code_terms();
/// what is the same for all units of a group is read once.
template <CodeOffsetType kType, int V>
class GroupTerms {
 public:
  /// Reads those from vector `vec` of the panel on, unless the previous unit was of the same group.
  MILLRACE_INLINE void read(const CodePanelFormat& format, const CodeUnit& unit, int vec) {
    if (unit.scales == group_) return;
    group_ = unit.scales;
    const int column = vec * kLanes;
    load_code_scales(format.scale_type, unit.scales + column * format.scale_bytes(), terms_, &CodeTerms::scale);
    if constexpr (kType == CodeOffsetType::kZeroPoints) load_zero_points(unit.offsets + column, terms_);
    if constexpr (kType == CodeOffsetType::kMinimums)
      load_code_scales(format.scale_type, unit.offsets + column * format.scale_bytes(), terms_, &CodeTerms::offset);
  }
  /// Returns the terms of vector `v` in a unit, or in its half `part`. It is vector `vec` of the panel. Minimums
  /// without factors of halves count with the first half. Such factors are int8, since those of E4M3 come with tables
  /// only.
  template <CodeHalves kHalves>
  [[nodiscard]] MILLRACE_INLINE CodeTerms at(const CodePanelFormat& format, const CodeUnit& unit, int v, int vec,
                                             int part) const {
    CodeTerms terms = {terms_[v].scale, {}};
    constexpr bool kHasHalfMinimums = kHalves == CodeHalves::kScalesAndMinimums;
    if (kType != CodeOffsetType::kConstant && (kHasHalfMinimums || part == 0)) terms.offset = terms_[v].offset;
    const char* const factors = unit.factors + vec * kLanes;
    if constexpr (kHalves != CodeHalves::kNone) {
      terms.scale *= widen_bytes(factors + part * kPanelColumns);
      if constexpr (kHasHalfMinimums) terms.offset *= widen_bytes(factors + (2 + part) * kPanelColumns);
    } else if (format.has_factors) {
      terms.scale *= widen_bytes(factors);
      if constexpr (kType == CodeOffsetType::kMinimums) terms.offset *= widen_bytes(factors + kPanelColumns);
    }
    return terms;
  }

 private:
  const char* group_ = nullptr;
  CodeTerms terms_[V] = {};
};

/// Forces the compiler to finish sums before it goes on, so that the codes of one vector at a time take registers.
template <class Sum>
MILLRACE_INLINE void finish_sum(Sum& sum) {
#if defined(__AVX512VNNI__) && !defined(MILLRACE_EMULATED_REGISTERS)
  asm volatile("" : "+v"(sum));
#else
  (void)sum;
#endif
}

/// Adds the products of R rows with V * 16 columns of `count` runs, the first of which begins at `run` for the first of
/// these columns. Of each run steps [kFirst, kFirst + kSteps) count. `inputs` are those of the first one.
template <int R, int V, int kBits, class Dot, int kFirst = 0, int kSteps = code_runs(kBits).steps>
MILLRACE_INLINE void add_runs(const char* run, int count, const char* inputs, const RowStrides& strides,
                              typename Dot::Sum (&sum)[R][V]) {
  constexpr CodeRuns kRuns = code_runs(kBits);
#pragma clang loop unroll_count(kRunUnroll<kBits, R>)
  for (int i = 0; i < count; ++i, run += kRuns.bytes(), inputs += kSteps * kInt8Depth) {
#pragma clang loop unroll(full)
    for (int v = 0; v < V; ++v) {
      const char* const lines = run + v * kRuns.vector_bytes();
      if constexpr (kPrefetchesCodes && R <= kInt8WholeRows) {
#pragma clang loop unroll(full)
        for (int line = 0; line < kRuns.lines; ++line)
          __builtin_prefetch(lines + line * kRunLineBytes + kPrefetchDistance, 0, kW8A8StreamPrefetchLevel);
      }
      for_run<kBits, kFirst, kSteps>(lines, [&](int step, Ints codes) __attribute__((always_inline)) {
#pragma clang loop unroll(full)
        for (int r = 0; r < R; ++r) Dot::add(sum[r][v], codes, inputs + strides.to(r) + step * kInt8Depth);
      });
      if constexpr (kRuns.lines > 1) {
#pragma clang loop unroll(full)
        for (int r = 0; r < R; ++r) finish_sum(sum[r][v]);
      }
    }
  }
}

/// Adds the GEMM of R rows with V * 16 columns of a unit, or of its half `part`, to acc. The rows' inputs begin at
/// `lhs`, and the unit's codes, of kBits where they are read, at `codes`.
template <int R, int V, class Codes, int kBits>
MILLRACE_INLINE void add_byte_part(const CodePanelFormat& format, const CodeUnit& unit, const char* codes,
                                   const GroupTerms<Codes::kType, V>& group, int first, int part, const char* lhs,
                                   const RowStrides& strides, Vec (&acc)[R][V]) {
  using Dot = CodeDot<Codes::kColumns>;
  constexpr CodeRuns kRuns = code_runs(kBits);
  constexpr int kPartSteps = kCodeUnitSteps / Codes::kParts;
  constexpr int kPartRuns = kPartSteps / kRuns.steps;
  constexpr bool kHasHalves = Codes::kParts == 2;
  const char* const inputs = lhs + part * (kW8GroupElements / 2);
  CodeLhs row[R];
  Ints addend[R];
  typename Dot::Sum sum[R][V];
#pragma clang loop unroll(full)
  for (int r = 0; r < R; ++r) {
    const auto params = load_as<LhsQuantParams>(lhs + strides.to(r) + kW8GroupElements);
    row[r] = CodeLhs(params);
    if constexpr (Codes::kHalfFactors == CodeHalves::kScalesAndMinimums)
      row[r].input_sum = half_input_sum(inputs + strides.to(r));
    addend[r] = code_addend<kHasHalves>(params, byte_offset<Codes>(format), inputs + strides.to(r));
#pragma clang loop unroll(full)
    for (int v = 0; v < V; ++v) sum[r][v] = Dot::start(addend[r]);
  }
  const char* const lines = codes + first / kLanes * kRuns.vector_bytes();
  if constexpr (kPartRuns > 0) {
    add_runs<R, V, kBits, Dot>(lines + part * kPartRuns * kRuns.bytes(), kPartRuns, inputs, strides, sum);
  } else if (part == 0) {
    add_runs<R, V, kBits, Dot, 0, kPartSteps>(lines, 1, inputs, strides, sum);
  } else {
    add_runs<R, V, kBits, Dot, kPartSteps, kPartSteps>(lines, 1, inputs, strides, sum);
  }
#pragma clang loop unroll(full)
  for (int v = 0; v < V; ++v) {
    const CodeTerms terms = group.template at<Codes::kHalfFactors>(format, unit, v, first / kLanes + v, part);
#pragma clang loop unroll(full)
    for (int r = 0; r < R; ++r)
      acc[r][v] = add_code_sums<Codes::kType>(Dot::total(sum[r][v], addend[r]), terms, row[r], acc[r][v]);
  }
}

/// Multiplies R rows over some units of a panel, whose codes of fewer than 8 bits may be unpacked in scratch. Adds to c
/// unless `fresh`.
template <int R, class Codes, CodeSource kSource>
[[gnu::noinline]] void byte_tile(const CodePanelFormat& format, const CodeCursor& begin, const std::byte* scratch,
                                 int64_t units, const char* lhs, size_t lhs_stride, float* c, bool fresh,
                                 PanelPrefetch& ahead) {
  constexpr int V = kInt8TileVecs<R>;
  constexpr bool kInScratch = kSource == CodeSource::kUnpacked && Codes::kBits != 8;
  const RowStrides strides(lhs_stride);
  for (int first = 0; first < kPanelColumns; first += V * kLanes) {
    Vec acc[R][V] = {};
    if (!fresh) load_tile(acc, c + first, kPanelColumns);
    CodeCursor cursor = begin;
    GroupTerms<Codes::kType, V> group;
    const char* inputs = lhs;
    for (int64_t i = 0; i < units; ++i, inputs += kCodeLhsUnitBytes) {
      const char* const line = cursor.at();
      const CodeUnit unit = cursor.take();
      group.read(format, unit, first / kLanes);
      ahead.run_some();
      for (const char* at = line; at < unit.codes; at += 64)
        __builtin_prefetch(at + kPrefetchDistance, 0, kW8A8StreamPrefetchLevel);
      const char* const codes =
          kInScratch ? reinterpret_cast<const char*>(scratch) + i * kUnpackedUnitBytes : unit.codes;
#pragma clang loop unroll(disable)
      for (int part = 0; part < Codes::kParts; ++part)
        add_byte_part<R, V, Codes, kInScratch ? 8 : Codes::kBits>(format, unit, codes, group, first, part, inputs,
                                                                  strides, acc);
    }
    store_tile(acc, c + first, kPanelColumns);
  }
}

/// Multiplies rows tile by tile. A tile that takes all columns at once streams the panel. Otherwise tiles pass over
/// some units after each other, and prefetch the next ones.
template <class Codes, CodeSource kSource>
void byte_rows(const GemmTask& task) {
  constexpr bool kInScratch = kSource == CodeSource::kUnpacked && Codes::kBits != 8;
  const bool streams = !kInScratch && kTileVecs > 1 && task.rows <= kInt8WholeRows;
  CodeCursor cursor(*task.codes, task.panel);
  const int64_t all = task.steps / kCodeUnitSteps;
  const int64_t block = streams ? all : kSharedByteUnits;
  const int64_t tiles = (task.rows + kInt8TileRows - 1) / kInt8TileRows;
  const auto* const lhs = reinterpret_cast<const char*>(task.lhs);
  for (int64_t unit = 0; unit < all; unit += block) {
    const int64_t count = all - unit < block ? all - unit : block;
    CodeCursor end = cursor;
    for (int64_t i = 0; !streams && i < count; ++i) {
      const char* const codes = end.take().codes;
      if constexpr (kInScratch)
        unpack_runs<Codes::kBits>(codes, reinterpret_cast<char*>(task.scratch) + i * kUnpackedUnitBytes);
    }
    const char* const next = unit + count == all ? reinterpret_cast<const char*>(task.next) : end.at();
    PanelPrefetch ahead{next, !streams && next != nullptr ? end.at() - cursor.at() : 0, tiles * count};
    for_row_tiles<kInt8TileRows>(task.rows, [&](auto rows, int row) {
      byte_tile<decltype(rows)::kCount, Codes, kSource>(
          *task.codes, cursor, task.scratch, count,
          lhs + static_cast<size_t>(row) * task.lhs_stride + unit * kCodeLhsUnitBytes, task.lhs_stride,
          task.c + row * kPanelColumns, unit == 0, ahead);
    });
    cursor = end;
  }
}

/// Multiplies rows with codes of fewer than 8 bits. One tile reads them from the panel; several share what is unpacked.
template <class Codes>
MILLRACE_INLINE void packed_rows(const GemmTask& task) {
  if (task.rows <= kInt8TileRows) return byte_rows<Codes, CodeSource::kPacked>(task);
  byte_rows<Codes, CodeSource::kUnpacked>(task);
}

template <CodeOffsetType kType, CodeHalves kHalves>
MILLRACE_INLINE void rows_of_bits(const GemmTask& task) {
  const int bits = task.codes->bits;
  if (bits == 6) return packed_rows<ByteCodes<6, kType, kHalves>>(task);
  if constexpr (kHalves == CodeHalves::kNone) {
    if (bits == 5) return packed_rows<ByteCodes<5, kType, kHalves>>(task);
  } else if constexpr (kType == CodeOffsetType::kConstant || kHalves == CodeHalves::kScalesAndMinimums) {
    if (bits == 3) return packed_rows<ByteCodes<3, kType, kHalves>>(task);
    if constexpr (kType == CodeOffsetType::kMinimums) {
      if (bits == 2) return packed_rows<ByteCodes<2, kType, kHalves>>(task);
    }
  }
  byte_rows<ByteCodes<8, kType, kHalves>, CodeSource::kUnpacked>(task);
}

void gemm_bytes(const GemmTask& task) {
  if (task.steps == 0) return clear_code_sums(task);
  with_code_offsets(task.codes->offset_type, [&](auto type) __attribute__((always_inline)) {
    constexpr CodeOffsetType kType = decltype(type)::kValue;
    if constexpr (kType == CodeOffsetType::kMinimums) {
      if (task.codes->has_half_minimums) return rows_of_bits<kType, CodeHalves::kScalesAndMinimums>(task);
    }
    if constexpr (kType != CodeOffsetType::kZeroPoints) {  // which exclude factors of halves
      if (task.codes->has_half_factors()) return rows_of_bits<kType, CodeHalves::kScales>(task);
    }
    rows_of_bits<kType, CodeHalves::kNone>(task);
  });
}

}  // namespace
}  // namespace millrace::cpu
