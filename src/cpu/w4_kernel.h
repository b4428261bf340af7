#pragma once

// GEMM of 4-bit panels with 8-bit rows. Within a unit of 32 the sums are integers, equal for every instruction set and
// path. Units are added in f32 in order. Included only by kernels.cc.

#include "cpu/w4_unit.h"

namespace millrace::cpu {
namespace {

constexpr int kW4StepBytes = kPanelColumns * kInt8Depth;  // of a step of unpacked codes
constexpr int kUnpackedUnitBytes = kW4UnitSteps * kW4StepBytes;

/// Loads the integers of 16 columns for 8 inputs from the codes of a unit.
template <bool kTable>
MILLRACE_INLINE void load_w4_codes(const char* from, const W4Table& table, Ints& low, Ints& high) {
  const auto packed = load_as<Bits>(from);
  low = reinterpret_cast<Ints>(packed & 0x0F0F0F0Fu);
  high = reinterpret_cast<Ints>((packed >> 4) & 0x0F0F0F0Fu);
  if constexpr (kTable) {
    low = table.look_up(low);
    high = table.look_up(high);
  }
}

/// Unpacks a unit to one byte per code, [8 steps][64][4].
template <bool kTable>
MILLRACE_INLINE void unpack_w4_unit(const char* codes, const W4Table& table, char* out) {
  for (int pair = 0; pair < kW4UnitSteps / 2; ++pair, out += 2 * kW4StepBytes) {
#pragma clang loop unroll(full)
    for (int v = 0; v < kPanelColumns / kLanes; ++v, codes += 64) {
      Ints low;
      Ints high;
      load_w4_codes<kTable>(codes, table, low, high);
      store_as(out + v * 64, low);
      store_as(out + kW4StepBytes + v * 64, high);
    }
  }
}

/// Says whether a tile prefetches the codes that it streams. Zen 4 reads a third faster without that.
#if defined(__AVX512BF16__) && !defined(__AMX_BF16__)
constexpr bool kPrefetchesW4Codes = false;
#else
constexpr bool kPrefetchesW4Codes = true;
#endif

/// How a tile reads a unit.
enum class W4Source : uint8_t {
  kPacked,    ///< from the panel
  kUnpacked,  ///< from scratch
};

/// How the codes of a panel are read.
enum class W4Codes : uint8_t {
  kPlain,        ///< they are the integers
  kTable,        ///< they stand for integers of a table
  kTableHalves,  ///< the same, and the halves of units have factors of their own
};
constexpr bool has_w4_table(W4Codes codes) {
  return codes != W4Codes::kPlain;
}

/// Adds to c [R, V * 16] the GEMM of LHS rows with one unit, or with its half `part`. `from` is the first of the
/// columns' codes or bytes; it advances.
template <int R, int V, W4Codes kCodes, W4Source kSource>
MILLRACE_INLINE void add_w4_part(const W4PanelFormat& format, const W4Unit& unit, const W4Table& table,
                                 const char*& from, int first, const char* lhs, size_t lhs_stride, float* c, int part) {
  constexpr bool kHalves = kCodes == W4Codes::kTableHalves;
  constexpr bool kTable = has_w4_table(kCodes);
  using Dot = W4Dot<kTable && kSignedW4Tables>;
  const RowStrides strides(lhs_stride);
  const char* inputs = lhs + part * (kW8GroupElements / 2);
  W4Lhs row[R];
  typename Dot::Sum sum[R][V];
#pragma clang loop unroll(full)
  for (int r = 0; r < R; ++r) {
    const auto params = load_as<LhsQuantParams>(lhs + strides.to(r) + kW8GroupElements);
    if constexpr (kHalves) {
      row[r] = W4Lhs(params, w4_offset(format), inputs + strides.to(r));
    } else {
      row[r] = W4Lhs(params, w4_offset(format));
    }
#pragma clang loop unroll(full)
    for (int v = 0; v < V; ++v) sum[r][v] = Dot::start(row[r].addend);
  }
#pragma clang loop unroll(disable)
  for (int pair = 0; pair < kW4UnitSteps / (kHalves ? 4 : 2); ++pair, inputs += 2 * kInt8Depth) {
#pragma clang loop unroll(full)
    for (int v = 0; v < V; ++v) {
      Ints low;
      Ints high;
      if constexpr (kSource == W4Source::kPacked) {
        load_w4_codes<kTable>(from + v * 64, table, low, high);
        if constexpr (kPrefetchesW4Codes)
          __builtin_prefetch(from + v * 64 + kPrefetchDistance, 0, kW8A8StreamPrefetchLevel);
      } else {
        low = load_as<Ints>(from + v * 64);
        high = load_as<Ints>(from + kW4StepBytes + v * 64);
      }
#pragma clang loop unroll(full)
      for (int r = 0; r < R; ++r) Dot::add(sum[r][v], low, inputs + strides.to(r));
#pragma clang loop unroll(full)
      for (int r = 0; r < R; ++r) Dot::add(sum[r][v], high, inputs + strides.to(r) + kInt8Depth);
    }
    from += kSource == W4Source::kPacked ? kW4StepBytes : 2 * kW4StepBytes;
  }
  with_w4_offsets(format.offset_type, [&](auto type) __attribute__((always_inline)) {
#pragma clang loop unroll(full)
    for (int v = 0; v < V; ++v) {
      const W4Terms terms = load_w4_terms(format, unit, first / kLanes + v, part);
#pragma clang loop unroll(full)
      for (int r = 0; r < R; ++r) {
        float* const at = c + r * kPanelColumns + v * kLanes;
        const Ints total = Dot::total(sum[r][v], row[r].addend);
        store(at, add_w4_sums<decltype(type)::kValue>(total, terms, row[r], load(at)));
      }
    }
  });
}

/// Adds to c [R, V * 16] the GEMM of LHS rows with one unit.
template <int R, int V, W4Codes kCodes, W4Source kSource>
MILLRACE_INLINE void add_w4_unit(const W4PanelFormat& format, const W4Unit& unit, const W4Table& table,
                                 const char* from, int first, const char* lhs, size_t lhs_stride, float* c) {
#pragma clang loop unroll(disable)
  for (int part = 0; part < (kCodes == W4Codes::kTableHalves ? 2 : 1); ++part)
    add_w4_part<R, V, kCodes, kSource>(format, unit, table, from, first, lhs, lhs_stride, c, part);
}

/// Rows of a tile: with more of them the inputs of all rows do not fit the registers.
#if defined(__AVX2__)
constexpr int kW4TileRows = 4;
#else
constexpr int kW4TileRows = 2;
#endif
/// Rows up to which tiles look up codes as they read them. More rows share what is unpacked to scratch. Codes that need
/// no table are never unpacked.
constexpr int kMaxLookUpRows = 4 * kW4TileRows;
/// Units that are unpacked at a time, 2 KB each.
constexpr int kUnpackedUnits = 8;
static_assert(kUnpackedUnits * kUnpackedUnitBytes <= static_cast<int>(kW8ScratchBytes));

MILLRACE_INLINE void clear_w4_sums(const GemmTask& task) {
  for (int64_t i = 0; i < int64_t{task.rows} * kPanelColumns; i += kLanes) store(task.c + i, Vec{});
}

/// Prefetches the next block of a panel, some lines with every unit of each tile.
struct W4Prefetch {
  const char* at = nullptr;
  const char* end = nullptr;
  int64_t lines = 0;

  MILLRACE_INLINE W4Prefetch(const char* begin, int64_t bytes, int64_t turns)
      : at(begin), end(begin + bytes), lines((bytes / 64 + turns - 1) / turns) {}
  MILLRACE_INLINE void run_some() {
    for (int64_t i = 0; i < lines && at < end; ++i, at += 64) __builtin_prefetch(at, 0, kPrefetchToL2);
  }
};

/// Multiplies R rows from `row` on over some units from `step` on, unpacking codes as it reads them.
template <int R, W4Codes kCodes>
void stream_w4(const GemmTask& task, const W4Table& table, W4Cursor& cursor, int row, int64_t step, int64_t units,
               W4Prefetch& ahead) {
  constexpr int V = kTileVecs;
  const W4PanelFormat& format = *task.w4;
  const char* lhs = reinterpret_cast<const char*>(task.lhs) + static_cast<size_t>(row) * task.lhs_stride +
                    step / kW4UnitSteps * kW4LhsUnitBytes;
  float* const c = task.c + row * kPanelColumns;
  for (int64_t i = 0; i < units; ++i, lhs += kW4LhsUnitBytes) {
    const char* const begin = cursor.at();
    const W4Unit unit = cursor.take();
    ahead.run_some();
    for (const char* line = begin; line < unit.codes; line += 64)
      __builtin_prefetch(line + kPrefetchDistance, 0, kW8A8StreamPrefetchLevel);
#pragma clang loop unroll(disable)
    for (int first = 0; first < kPanelColumns; first += V * kLanes) {
      add_w4_unit<R, V, kCodes, W4Source::kPacked>(format, unit, table, unit.codes + first * kInt8Depth, first, lhs,
                                                   task.lhs_stride, c + first);
    }
  }
}

/// Multiplies rows tile by tile. Of more than one tile each passes over some units, which stay in the second-level
/// cache, while the later ones prefetch the next units.
template <W4Codes kCodes>
void stream_rows_w4(const GemmTask& task, const W4Table& table) {
  constexpr int64_t kSharedUnits = 128;
  W4Cursor cursor(*task.w4, task.panel);
  const int64_t all = task.steps / kW4UnitSteps;
  const int64_t tiles = (task.rows + kW4TileRows - 1) / kW4TileRows;
  for (int64_t unit = 0; unit < all; unit += kSharedUnits) {
    const int64_t count = all - unit < kSharedUnits ? all - unit : kSharedUnits;
    const char* const begin = cursor.at();
    W4Cursor end = cursor;
    W4Prefetch ahead{nullptr, 0, 1};
    for_row_tiles<kW4TileRows>(task.rows, [&](auto rows, int row) {
      end = cursor;
      stream_w4<decltype(rows)::kCount, kCodes>(task, table, end, row, unit * kW4UnitSteps, count, ahead);
      if (row == 0 && tiles > 1) {
        const char* const next = unit + count == all ? reinterpret_cast<const char*>(task.next) : end.at();
        if (next != nullptr) ahead = W4Prefetch{next, end.at() - begin, (tiles - 1) * count};
      }
    });
    cursor = end;
  }
}

/// A block of units whose codes are unpacked in scratch.
struct W4Block {
  W4Unit units[kUnpackedUnits];
  int count = 0;
  const char* begin = nullptr;
  const char* end = nullptr;

  template <bool kTable>
  MILLRACE_INLINE void unpack(W4Cursor& cursor, int64_t steps, const W4Table& table, std::byte* scratch) {
    const int64_t rest = steps / kW4UnitSteps;
    count = rest < kUnpackedUnits ? static_cast<int>(rest) : kUnpackedUnits;
    begin = cursor.at();
    for (int i = 0; i < count; ++i) {
      units[i] = cursor.take();
      unpack_w4_unit<kTable>(units[i].codes, table, reinterpret_cast<char*>(scratch) + i * kUnpackedUnitBytes);
    }
    end = cursor.at();
  }
  /// Returns the prefetching of as much of what follows, in `turns` turns.
  [[nodiscard]] MILLRACE_INLINE W4Prefetch prefetch(const GemmTask& task, bool is_last, int64_t turns) const {
    const bool is_known = !is_last || task.next != nullptr;
    const char* const next = is_last ? reinterpret_cast<const char*>(task.next) : end;
    return {is_known ? next : end, is_known ? end - begin : 0, turns};
  }
};

/// Multiplies many rows with codes of a table. Each block of units is unpacked once.
template <W4Codes kCodes>
void blocked_w4(const GemmTask& task, const W4Table& table) {
  constexpr int V = kTileVecs;
  const W4PanelFormat& format = *task.w4;
  W4Cursor cursor(format, task.panel);
  const int64_t tiles = (task.rows + kW4TileRows - 1) / kW4TileRows;
  for (int64_t step = 0; step < task.steps; step += int64_t{kUnpackedUnits} * kW4UnitSteps) {
    W4Block block;
    block.unpack<true>(cursor, task.steps - step, table, task.scratch);
    const bool is_last = task.steps - step <= int64_t{kUnpackedUnits} * kW4UnitSteps;
    W4Prefetch ahead = block.prefetch(task, is_last, tiles * block.count);
    const auto* const bytes = reinterpret_cast<const char*>(task.scratch);
    const auto* const inputs = reinterpret_cast<const char*>(task.lhs) + step / kW4UnitSteps * kW4LhsUnitBytes;
    for_row_tiles<kW4TileRows>(task.rows, [&](auto rows, int row) {
      constexpr int R = decltype(rows)::kCount;
      const char* const lhs = inputs + static_cast<size_t>(row) * task.lhs_stride;
      for (int i = 0; i < block.count; ++i) {
        ahead.run_some();
#pragma clang loop unroll(disable)
        for (int first = 0; first < kPanelColumns; first += V * kLanes) {
          add_w4_unit<R, V, kCodes, W4Source::kUnpacked>(
              format, block.units[i], table, bytes + i * kUnpackedUnitBytes + first * kInt8Depth, first,
              lhs + i * kW4LhsUnitBytes, task.lhs_stride, task.c + row * kPanelColumns + first);
        }
      }
    });
  }
}

template <W4Codes kCodes>
MILLRACE_INLINE void gemm_w4_of(const GemmTask& task) {
  const W4Table table(*task.w4);
  clear_w4_sums(task);
  if constexpr (has_w4_table(kCodes)) {
    if (task.rows > kMaxLookUpRows) return blocked_w4<kCodes>(task, table);
  }
  stream_rows_w4<kCodes>(task, table);
}

/// Returns how the codes of a panel are read. Factors of halves come with tables only.
MILLRACE_INLINE W4Codes w4_codes(const W4PanelFormat& format) {
  if (format.has_half_factors()) return W4Codes::kTableHalves;
  return format.has_table ? W4Codes::kTable : W4Codes::kPlain;
}

void gemm_w4(const GemmTask& task) {
  switch (w4_codes(*task.w4)) {
    case W4Codes::kPlain: return gemm_w4_of<W4Codes::kPlain>(task);
    case W4Codes::kTable: return gemm_w4_of<W4Codes::kTable>(task);
    case W4Codes::kTableHalves: return gemm_w4_of<W4Codes::kTableHalves>(task);
  }
}

void quantize_lhs_w4(const float* in, int64_t count, std::byte* out) {
  quantize_lhs_groups(in, count, out, store_lhs_bytes);
}

}  // namespace
}  // namespace millrace::cpu
