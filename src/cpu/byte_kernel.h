#pragma once

// GEMM of panels of codes of 5 or 8 bits with 8-bit rows. Within a unit of 32 summed elements, or its half where
// halves have factors, the sums are integers, equal for every instruction set and path. Units are added in f32 in
// order. Included only by kernels.cc.

#include "cpu/nibble_kernel.h"

namespace millrace::cpu {
namespace {

/// Units that stay in the first-level cache, 2 KB each, while tiles of rows pass over them.
constexpr int64_t kSharedByteUnits = 8;
static_assert(kSharedByteUnits <= kUnpackedUnits);

/// Steps per loop iteration. With a whole unit of several rows the compiler loads all inputs first, beyond the
/// registers.
template <int R>
constexpr int kByteStepUnroll = !kWideTiles ? 1
                                : R == 1    ? 4
                                            : 2;

/// The codes of a panel at compile time.
template <int kCodeBits, CodeOffsetType kOffsetType, bool kHasHalves>
struct ByteCodes {
  static constexpr int kBits = kCodeBits;
  static constexpr CodeOffsetType kType = kOffsetType;
  static constexpr bool kHalves = kHasHalves;
  static constexpr CodeColumns kColumns =
      kCodeBits == 8 && kSignedCodeTables ? CodeColumns::kSigned : CodeColumns::kUnsigned;
};

/// What is subtracted from the sums of codes of 8 bits with an input, times the input: 128 times -1, 0 or 1.
template <CodeOffsetType kType>
constexpr int kByteOffsets = (kType == CodeOffsetType::kZeroPoints ? 0 : 1) - (kSignedCodeTables ? 1 : 0);

/// Returns an LHS row's part in a unit, or in its half of inputs `half` where halves have factors.
template <class Codes>
MILLRACE_INLINE CodeLhs byte_lhs(const CodePanelFormat& format, const LhsQuantParams& params, const char* half) {
  const int offset = Codes::kBits == 8 ? kByteOffsets<Codes::kType> * 128 : format.offset;
  if constexpr (Codes::kHalves) return {params, offset, half};
  return {params, offset};
}

/// Steps whose codes share bytes of lower bits, in pairs: half a unit.
constexpr int kQuadSteps = 4;

/// Returns the codes of step kStep of a quad for 16 columns. `low` has the step's lower four bits, and `high` the
/// highest ones of the quad.
template <int kStep>
MILLRACE_INLINE Ints merge_code_bits(Bits low, Bits high) {
  const Bits nibbles = (kStep % 2 == 0 ? low : low >> 4) & 0x0F0F0F0Fu;
  return reinterpret_cast<Ints>(nibbles | (high << static_cast<uint32_t>(4 - kStep) & 0x10101010u));
}

/// Calls body(step, codes) with the codes of each step of a quad for 16 columns, whose lower bits begin at `unit`.
template <class Body>
MILLRACE_INLINE void for_quad(const char* unit, int quad, Body&& body) {
  const char* const from = unit + quad * 2 * kCodeStepBytes;
  const auto first = load_as<Bits>(from);
  const auto second = load_as<Bits>(from + kCodeStepBytes);
  const Bits high = load_as<Bits>(unit + kUnitCodeBytes) >> static_cast<uint32_t>(quad * kQuadSteps);
  body(0, merge_code_bits<0>(first, high));
  body(1, merge_code_bits<1>(first, high));
  body(2, merge_code_bits<2>(second, high));
  body(3, merge_code_bits<3>(second, high));
}

/// Unpacks a unit to one byte per code, [8 steps][64][4].
MILLRACE_INLINE void unpack_five_bits(const char* codes, char* out) {
#pragma clang loop unroll(disable)
  for (int quad = 0; quad < kCodeUnitSteps / kQuadSteps; ++quad, out += kQuadSteps * kCodeStepBytes) {
#pragma clang loop unroll(full)
    for (int v = 0; v < kPanelColumns / kLanes; ++v) {
      for_quad(codes + v * 64, quad, [&](int step, Ints columns) __attribute__((always_inline)) {
        store_as(out + step * kCodeStepBytes + v * 64, columns);
      });
    }
  }
}

/// Adds the products of R rows with V * 16 columns of `steps` steps of bytes.
template <int R, int V, class Dot>
MILLRACE_INLINE void add_byte_steps(const char* columns, int steps, const char* inputs, const RowStrides& strides,
                                    typename Dot::Sum (&sum)[R][V]) {
#pragma clang loop unroll_count(kByteStepUnroll<R>)
  for (int step = 0; step < steps; ++step, columns += kCodeStepBytes, inputs += kInt8Depth) {
#pragma clang loop unroll(full)
    for (int v = 0; v < V; ++v) {
      if constexpr (kPrefetchesCodes && R <= kInt8WholeRows)
        __builtin_prefetch(columns + v * 64 + kPrefetchDistance, 0, kW8A8StreamPrefetchLevel);
      const Ints codes = load_as<Ints>(columns + v * 64);
#pragma clang loop unroll(full)
      for (int r = 0; r < R; ++r) Dot::add(sum[r][v], codes, inputs + strides.to(r));
    }
  }
}

/// Adds the same products of a quad of packed codes. `inputs` are those of the quad.
template <int R, int V, class Dot>
MILLRACE_INLINE void add_packed_quad(const char* unit, int quad, const char* inputs, const RowStrides& strides,
                                     typename Dot::Sum (&sum)[R][V]) {
#pragma clang loop unroll(full)
  for (int v = 0; v < V; ++v) {
    if constexpr (kPrefetchesCodes && R <= kInt8WholeRows) {
      constexpr int kLines = 3;  // of each vector of columns, of which quads have one in common
      const char* const line = unit + quad * (kLines - 1) * kCodeStepBytes + v * 64 + kPrefetchDistance;
#pragma clang loop unroll(full)
      for (int i = 0; i < kLines; ++i) __builtin_prefetch(line + i * kCodeStepBytes, 0, kW8A8StreamPrefetchLevel);
    }
    for_quad(unit + v * 64, quad, [&](int step, Ints codes) __attribute__((always_inline)) {
#pragma clang loop unroll(full)
      for (int r = 0; r < R; ++r) Dot::add(sum[r][v], codes, inputs + strides.to(r) + step * kInt8Depth);
    });
  }
}

/// Adds the GEMM of R rows with V * 16 columns of a unit, or of its half `part`, to acc. The rows' inputs begin at
/// `lhs`, and the unit's codes at `codes`.
template <int R, int V, class Codes, CodeSource kSource>
MILLRACE_INLINE void add_byte_part(const CodePanelFormat& format, const CodeUnit& unit, const char* codes, int first,
                                   int part, const char* lhs, const RowStrides& strides, Vec (&acc)[R][V]) {
  using Dot = CodeDot<Codes::kColumns>;
  constexpr int kSteps = Codes::kHalves ? kCodeUnitSteps / 2 : kCodeUnitSteps;
  const char* const inputs = lhs + part * (kW8GroupElements / 2);
  CodeLhs row[R];
  typename Dot::Sum sum[R][V];
#pragma clang loop unroll(full)
  for (int r = 0; r < R; ++r) {
    row[r] = byte_lhs<Codes>(format, load_as<LhsQuantParams>(lhs + strides.to(r) + kW8GroupElements),
                             inputs + strides.to(r));
#pragma clang loop unroll(full)
    for (int v = 0; v < V; ++v) sum[r][v] = Dot::start(row[r].addend);
  }
  if constexpr (kSource == CodeSource::kUnpacked) {
    add_byte_steps<R, V, Dot>(codes + part * kSteps * kCodeStepBytes + first * kInt8Depth, kSteps, inputs, strides,
                              sum);
  } else {
    constexpr int kQuads = kSteps / kQuadSteps;
#pragma clang loop unroll(disable)
    for (int quad = 0; quad < kQuads; ++quad)
      add_packed_quad<R, V, Dot>(codes + first * kInt8Depth, part * kQuads + quad,
                                 inputs + quad * kQuadSteps * kInt8Depth, strides, sum);
  }
#pragma clang loop unroll(full)
  for (int v = 0; v < V; ++v) {
    const CodeTerms terms = load_code_terms(format, unit, first / kLanes + v, part);
#pragma clang loop unroll(full)
    for (int r = 0; r < R; ++r)
      acc[r][v] = add_code_sums<Codes::kType>(Dot::total(sum[r][v], row[r].addend), terms, row[r], acc[r][v]);
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
    const char* inputs = lhs;
    for (int64_t i = 0; i < units; ++i, inputs += kCodeLhsUnitBytes) {
      const char* const line = cursor.at();
      const CodeUnit unit = cursor.take();
      ahead.run_some();
      for (const char* at = line; at < unit.codes; at += 64)
        __builtin_prefetch(at + kPrefetchDistance, 0, kW8A8StreamPrefetchLevel);
      const char* const codes =
          kInScratch ? reinterpret_cast<const char*>(scratch) + i * kUnpackedUnitBytes : unit.codes;
#pragma clang loop unroll(disable)
      for (int part = 0; part < (Codes::kHalves ? 2 : 1); ++part)
        add_byte_part<R, V, Codes, kSource>(format, unit, codes, first, part, inputs, strides, acc);
    }
    store_tile(acc, c + first, kPanelColumns);
  }
}

/// Multiplies rows tile by tile. A tile that takes all columns at once streams the panel. Otherwise tiles pass over
/// some units after each other, and prefetch the next ones.
template <class Codes, CodeSource kSource>
void byte_rows(const GemmTask& task) {
  // Parts of packed codes are not read in order, so processors do not prefetch them well.
  const bool streams =
      kSource == CodeSource::kUnpacked && Codes::kBits == 8 && kTileVecs > 1 && task.rows <= kInt8WholeRows;
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
      if constexpr (kSource == CodeSource::kUnpacked && Codes::kBits != 8)
        unpack_five_bits(codes, reinterpret_cast<char*>(task.scratch) + i * kUnpackedUnitBytes);
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

void gemm_bytes(const GemmTask& task) {
  if (task.steps == 0) return clear_code_sums(task);
  with_code_offsets(task.codes->offset_type, [&](auto type) __attribute__((always_inline)) {
    constexpr CodeOffsetType kType = decltype(type)::kValue;
    if constexpr (kType != CodeOffsetType::kZeroPoints) {  // which exclude factors of halves
      if (task.codes->has_half_factors())
        return byte_rows<ByteCodes<8, kType, true>, CodeSource::kUnpacked>(task);  // no format of 5 bits has them
    }
    if (task.codes->bits == 5) return packed_rows<ByteCodes<5, kType, false>>(task);
    byte_rows<ByteCodes<8, kType, false>, CodeSource::kUnpacked>(task);
  });
}

}  // namespace
}  // namespace millrace::cpu
