#pragma once

// GEMM of panels of 8-bit codes with 8-bit rows. Within a unit of 32 summed elements, or its half where halves have
// factors, the sums are integers, equal for every instruction set and path. Units are added in f32 in order. Included
// only by kernels.cc.

#include "cpu/nibble_kernel.h"

namespace millrace::cpu {
namespace {

/// Units that stay in the first-level cache, 2 KB each, while tiles of rows pass over them.
constexpr int64_t kSharedByteUnits = 8;

/// Steps per loop iteration. With a whole unit of several rows the compiler loads all inputs first, beyond the
/// registers.
template <int R>
constexpr int kByteStepUnroll = !kWideTiles ? 1
                                : R == 1    ? 4
                                            : 2;

/// What is subtracted from the sums of codes with an input, times the input: 128 times -1, 0 or 1.
template <CodeOffsetType kType>
constexpr int kByteOffsets = (kType == CodeOffsetType::kZeroPoints ? 0 : 1) - (kSignedCodeTables ? 1 : 0);

/// Returns an LHS row's part in a unit, or in its half of inputs `half` where halves have factors.
template <CodeOffsetType kType, bool kHalves>
MILLRACE_INLINE CodeLhs byte_lhs(const LhsQuantParams& params, const char* half) {
  if constexpr (kHalves) return {params, kByteOffsets<kType> * 128, half};
  CodeLhs row;
  row.scale = params.scale;
  row.input_sum = -(params.compensation >> 7);
  row.addend = kByteOffsets<kType> * params.compensation;
  return row;
}

/// Adds the GEMM of R rows with V * 16 columns of a unit, or of its half `part`, to acc. The rows' inputs begin at
/// `lhs`.
template <int R, int V, CodeOffsetType kType, bool kHalves>
MILLRACE_INLINE void add_byte_part(const CodePanelFormat& format, const CodeUnit& unit, int first, int part,
                                   const char* lhs, const RowStrides& strides, Vec (&acc)[R][V]) {
  using Dot = CodeDot<kSignedCodeTables>;
  constexpr int kSteps = kHalves ? kCodeUnitSteps / 2 : kCodeUnitSteps;
  const char* inputs = lhs + part * (kW8GroupElements / 2);
  const char* columns = unit.codes + part * kSteps * kCodeStepBytes + first * kInt8Depth;
  CodeLhs row[R];
  typename Dot::Sum sum[R][V];
#pragma clang loop unroll(full)
  for (int r = 0; r < R; ++r) {
    row[r] = byte_lhs<kType, kHalves>(load_as<LhsQuantParams>(lhs + strides.to(r) + kW8GroupElements),
                                      inputs + strides.to(r));
#pragma clang loop unroll(full)
    for (int v = 0; v < V; ++v) sum[r][v] = Dot::start(row[r].addend);
  }
#pragma clang loop unroll_count(kByteStepUnroll<R>)
  for (int step = 0; step < kSteps; ++step, columns += kCodeStepBytes, inputs += kInt8Depth) {
#pragma clang loop unroll(full)
    for (int v = 0; v < V; ++v) {
      if constexpr (kPrefetchesCodes && R <= kInt8WholeRows)
        __builtin_prefetch(columns + v * 64 + kPrefetchDistance, 0, kW8A8StreamPrefetchLevel);
      const Ints codes = load_as<Ints>(columns + v * 64);
#pragma clang loop unroll(full)
      for (int r = 0; r < R; ++r) Dot::add(sum[r][v], codes, inputs + strides.to(r));
    }
  }
#pragma clang loop unroll(full)
  for (int v = 0; v < V; ++v) {
    const CodeTerms terms = load_code_terms(format, unit, first / kLanes + v, part);
#pragma clang loop unroll(full)
    for (int r = 0; r < R; ++r)
      acc[r][v] = add_code_sums<kType>(Dot::total(sum[r][v], row[r].addend), terms, row[r], acc[r][v]);
  }
}

/// Multiplies R rows over some units of a panel. Adds to c unless `fresh`.
template <int R, CodeOffsetType kType, bool kHalves>
[[gnu::noinline]] void byte_tile(const CodePanelFormat& format, const CodeCursor& begin, int64_t units, const char* lhs,
                                 size_t lhs_stride, float* c, bool fresh, PanelPrefetch& ahead) {
  constexpr int V = kInt8TileVecs<R>;
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
#pragma clang loop unroll(disable)
      for (int part = 0; part < (kHalves ? 2 : 1); ++part)
        add_byte_part<R, V, kType, kHalves>(format, unit, first, part, inputs, strides, acc);
    }
    store_tile(acc, c + first, kPanelColumns);
  }
}

/// Multiplies rows tile by tile. A tile that takes all columns at once streams the panel. Otherwise tiles pass over
/// some units after each other, and prefetch the next ones.
template <CodeOffsetType kType, bool kHalves>
void byte_rows(const GemmTask& task) {
  const bool streams = kTileVecs > 1 && task.rows <= kInt8WholeRows;
  CodeCursor cursor(*task.codes, task.panel);
  const int64_t all = task.steps / kCodeUnitSteps;
  const int64_t block = streams ? all : kSharedByteUnits;
  const int64_t tiles = (task.rows + kInt8TileRows - 1) / kInt8TileRows;
  const auto* const lhs = reinterpret_cast<const char*>(task.lhs);
  for (int64_t unit = 0; unit < all; unit += block) {
    const int64_t count = all - unit < block ? all - unit : block;
    CodeCursor end = cursor;
    for (int64_t i = 0; !streams && i < count; ++i) (void)end.take();
    const char* const next = unit + count == all ? reinterpret_cast<const char*>(task.next) : end.at();
    PanelPrefetch ahead{next, !streams && next != nullptr ? end.at() - cursor.at() : 0, tiles * count};
    for_row_tiles<kInt8TileRows>(task.rows, [&](auto rows, int row) {
      byte_tile<decltype(rows)::kCount, kType, kHalves>(
          *task.codes, cursor, count, lhs + static_cast<size_t>(row) * task.lhs_stride + unit * kCodeLhsUnitBytes,
          task.lhs_stride, task.c + row * kPanelColumns, unit == 0, ahead);
    });
    cursor = end;
  }
}

void gemm_bytes(const GemmTask& task) {
  if (task.steps == 0) return clear_code_sums(task);
  with_code_offsets(task.codes->offset_type, [&](auto type) __attribute__((always_inline)) {
    if (task.codes->has_half_factors()) return byte_rows<decltype(type)::kValue, true>(task);
    byte_rows<decltype(type)::kValue, false>(task);
  });
}

}  // namespace
}  // namespace millrace::cpu
