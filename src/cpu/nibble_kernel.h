#pragma once

// GEMM of 4-bit panels with 8-bit rows. Within a unit of 32 the sums are integers, equal for every instruction set and
// path. Units are added in f32 in order. Included only by kernels.cc.

#include "cpu/code_unit.h"

namespace millrace::cpu {
namespace {

constexpr int kCodeStepBytes = kPanelColumns * kInt8Depth;  // of a step of unpacked codes
constexpr int kUnpackedUnitBytes = kCodeUnitSteps * kCodeStepBytes;

/// Loads the integers of 16 columns for 8 inputs from the codes of a unit.
template <bool kTable>
MILLRACE_INLINE void load_nibbles(const char* from, const CodeTable& table, Ints& low, Ints& high) {
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
MILLRACE_INLINE void unpack_nibbles(const char* codes, const CodeTable& table, char* out) {
  for (int pair = 0; pair < kCodeUnitSteps / 2; ++pair, out += 2 * kCodeStepBytes) {
#pragma clang loop unroll(full)
    for (int v = 0; v < kPanelColumns / kLanes; ++v, codes += 64) {
      Ints low;
      Ints high;
      load_nibbles<kTable>(codes, table, low, high);
      store_as(out + v * 64, low);
      store_as(out + kCodeStepBytes + v * 64, high);
    }
  }
}

/// Says whether a tile prefetches the codes that it streams. Zen 4 reads a third faster without that.
#if defined(__AVX512BF16__) && !defined(__AMX_BF16__)
constexpr bool kPrefetchesCodes = false;
#else
constexpr bool kPrefetchesCodes = true;
#endif

/// How a tile reads a unit.
enum class CodeSource : uint8_t {
  kPacked,    ///< from the panel
  kUnpacked,  ///< from scratch
};

/// How the codes of a panel are read.
enum class NibbleReading : uint8_t {
  kPlain,        ///< they are the integers
  kTable,        ///< they stand for integers of a table
  kTableHalves,  ///< the same, and the halves of units have factors of their own
};
constexpr bool reads_table(NibbleReading codes) {
  return codes != NibbleReading::kPlain;
}

/// Vectors of columns whose terms are loaded together. With more rows they do not fit the registers.
template <int R, int V>
constexpr int kTermVecs = R <= 2 ? V : 1;

/// Adds to c [R, V * 16] the GEMM of LHS rows with one unit, or with its half `part`. `from` is the first of the
/// columns' codes or bytes; it advances.
template <int R, int V, NibbleReading kCodes, CodeSource kSource>
MILLRACE_INLINE void add_nibble_part(const CodePanelFormat& format, const CodeUnit& unit, const CodeTable& table,
                                     const char*& from, int first, const char* lhs, size_t lhs_stride, float* c,
                                     int part) {
  constexpr bool kHalves = kCodes == NibbleReading::kTableHalves;
  constexpr bool kTable = reads_table(kCodes);
  using Dot = CodeDot<kTable && kSignedCodeTables ? CodeColumns::kSigned : CodeColumns::kNibbles>;
  const RowStrides strides(lhs_stride);
  const char* inputs = lhs + part * (kW8GroupElements / 2);
  CodeLhs row[R];
  Ints addend[R];
  typename Dot::Sum sum[R][V];
#pragma clang loop unroll(full)
  for (int r = 0; r < R; ++r) {
    const auto params = load_as<LhsQuantParams>(lhs + strides.to(r) + kW8GroupElements);
    row[r] = CodeLhs(params);
    addend[r] = code_addend<kHalves>(params, code_offset(format), inputs + strides.to(r));
#pragma clang loop unroll(full)
    for (int v = 0; v < V; ++v) sum[r][v] = Dot::start(addend[r]);
  }
#pragma clang loop unroll(disable)
  for (int pair = 0; pair < kCodeUnitSteps / (kHalves ? 4 : 2); ++pair, inputs += 2 * kInt8Depth) {
#pragma clang loop unroll(full)
    for (int v = 0; v < V; ++v) {
      Ints low;
      Ints high;
      if constexpr (kSource == CodeSource::kPacked) {
        load_nibbles<kTable>(from + v * 64, table, low, high);
        if constexpr (kPrefetchesCodes)
          __builtin_prefetch(from + v * 64 + kPrefetchDistance, 0, kW8A8StreamPrefetchLevel);
      } else {
        low = load_as<Ints>(from + v * 64);
        high = load_as<Ints>(from + kCodeStepBytes + v * 64);
      }
#pragma clang loop unroll(full)
      for (int r = 0; r < R; ++r) Dot::add(sum[r][v], low, inputs + strides.to(r));
#pragma clang loop unroll(full)
      for (int r = 0; r < R; ++r) Dot::add(sum[r][v], high, inputs + strides.to(r) + kInt8Depth);
    }
    from += kSource == CodeSource::kPacked ? kCodeStepBytes : 2 * kCodeStepBytes;
  }
  with_code_offsets(format.offset_type, [&](auto type) __attribute__((always_inline)) {
    constexpr int kVecs = kTermVecs<R, V>;
#pragma clang loop unroll(full)
    for (int group = 0; group < V; group += kVecs) {
      CodeTerms terms[kVecs];
      load_code_terms(format, unit, first / kLanes + group, part, terms);
#pragma clang loop unroll(full)
      for (int i = 0; i < kVecs; ++i) {
        const int v = group + i;
#pragma clang loop unroll(full)
        for (int r = 0; r < R; ++r) {
          float* const at = c + r * kPanelColumns + v * kLanes;
          const Ints total = Dot::total(sum[r][v], addend[r]);
          store(at, add_code_sums<decltype(type)::kValue>(total, terms[i], row[r], load(at)));
        }
      }
    }
  });
}

/// Adds to c [R, V * 16] the GEMM of LHS rows with one unit.
template <int R, int V, NibbleReading kCodes, CodeSource kSource>
MILLRACE_INLINE void add_nibble_unit(const CodePanelFormat& format, const CodeUnit& unit, const CodeTable& table,
                                     const char* from, int first, const char* lhs, size_t lhs_stride, float* c) {
#pragma clang loop unroll(disable)
  for (int part = 0; part < (kCodes == NibbleReading::kTableHalves ? 2 : 1); ++part)
    add_nibble_part<R, V, kCodes, kSource>(format, unit, table, from, first, lhs, lhs_stride, c, part);
}

/// Rows of a tile: with more of them the inputs of all rows do not fit the registers.
#if defined(__AVX2__)
constexpr int kNibbleTileRows = 4;
#else
constexpr int kNibbleTileRows = 2;
#endif
/// Rows up to which tiles look up codes as they read them. More rows share what is unpacked to scratch. Codes that need
/// no table are never unpacked.
constexpr int kMaxLookUpRows = 4 * kNibbleTileRows;
/// Units that are unpacked at a time, 2 KB each.
constexpr int kUnpackedUnits = 8;
static_assert(kUnpackedUnits * kUnpackedUnitBytes <= static_cast<int>(kW8ScratchBytes));

MILLRACE_INLINE void clear_code_sums(const GemmTask& task) {
  for (int64_t i = 0; i < int64_t{task.rows} * kPanelColumns; i += kLanes) store(task.c + i, Vec{});
}

/// Prefetches the next block of a panel, some lines with every unit of each tile.
struct PanelPrefetch {
  const char* at = nullptr;
  const char* end = nullptr;
  int64_t lines = 0;

  MILLRACE_INLINE PanelPrefetch(const char* begin, int64_t bytes, int64_t turns)
      : at(begin), end(begin + bytes), lines((bytes / 64 + turns - 1) / turns) {}
  MILLRACE_INLINE void run_some() {
    for (int64_t i = 0; i < lines && at < end; ++i, at += 64) __builtin_prefetch(at, 0, kPrefetchToL2);
  }
};

/// Multiplies R rows from `row` on over some units from `step` on, unpacking codes as it reads them.
template <int R, NibbleReading kCodes>
void stream_nibbles(const GemmTask& task, const CodeTable& table, CodeCursor& cursor, int row, int64_t step,
                    int64_t units, PanelPrefetch& ahead) {
  constexpr int V = kTileVecs;
  const CodePanelFormat& format = *task.codes;
  const char* lhs = reinterpret_cast<const char*>(task.lhs) + static_cast<size_t>(row) * task.lhs_stride +
                    step / kCodeUnitSteps * kCodeLhsUnitBytes;
  float* const c = task.c + row * kPanelColumns;
  for (int64_t i = 0; i < units; ++i, lhs += kCodeLhsUnitBytes) {
    const char* const begin = cursor.at();
    const CodeUnit unit = cursor.take();
    ahead.run_some();
    for (const char* line = begin; line < unit.codes; line += 64)
      __builtin_prefetch(line + kPrefetchDistance, 0, kW8A8StreamPrefetchLevel);
#pragma clang loop unroll(disable)
    for (int first = 0; first < kPanelColumns; first += V * kLanes) {
      add_nibble_unit<R, V, kCodes, CodeSource::kPacked>(format, unit, table, unit.codes + first * kInt8Depth, first,
                                                         lhs, task.lhs_stride, c + first);
    }
  }
}

/// Multiplies rows tile by tile. Of more than one tile each passes over some units, which stay in the second-level
/// cache, while the later ones prefetch the next units.
template <NibbleReading kCodes>
void stream_nibble_rows(const GemmTask& task, const CodeTable& table) {
  constexpr int64_t kSharedUnits = 128;
  CodeCursor cursor(*task.codes, task.panel);
  const int64_t all = task.steps / kCodeUnitSteps;
  const int64_t tiles = (task.rows + kNibbleTileRows - 1) / kNibbleTileRows;
  for (int64_t unit = 0; unit < all; unit += kSharedUnits) {
    const int64_t count = all - unit < kSharedUnits ? all - unit : kSharedUnits;
    const char* const begin = cursor.at();
    CodeCursor end = cursor;
    PanelPrefetch ahead{nullptr, 0, 1};
    for_row_tiles<kNibbleTileRows>(task.rows, [&](auto rows, int row) {
      end = cursor;
      stream_nibbles<decltype(rows)::kCount, kCodes>(task, table, end, row, unit * kCodeUnitSteps, count, ahead);
      if (row == 0 && tiles > 1) {
        const char* const next = unit + count == all ? reinterpret_cast<const char*>(task.next) : end.at();
        if (next != nullptr) ahead = PanelPrefetch{next, end.at() - begin, (tiles - 1) * count};
      }
    });
    cursor = end;
  }
}

/// A block of units whose codes are unpacked in scratch.
struct CodeBlock {
  CodeUnit units[kUnpackedUnits];
  int count = 0;
  const char* begin = nullptr;
  const char* end = nullptr;

  /// Calls unpack_unit(codes, bytes) with each unit and its part of the scratch, of `stride` bytes.
  template <class UnpackUnit>
  MILLRACE_INLINE void unpack(CodeCursor& cursor, int64_t steps, std::byte* scratch, int stride,
                              UnpackUnit&& unpack_unit) {
    const int64_t rest = steps / kCodeUnitSteps;
    count = rest < kUnpackedUnits ? static_cast<int>(rest) : kUnpackedUnits;
    begin = cursor.at();
    for (int i = 0; i < count; ++i) {
      units[i] = cursor.take();
      unpack_unit(units[i].codes, reinterpret_cast<char*>(scratch) + i * stride);
    }
    end = cursor.at();
  }
  /// Returns the prefetching of as much of what follows, in `turns` turns.
  [[nodiscard]] MILLRACE_INLINE PanelPrefetch prefetch(const GemmTask& task, bool is_last, int64_t turns) const {
    const bool is_known = !is_last || task.next != nullptr;
    const char* const next = is_last ? reinterpret_cast<const char*>(task.next) : end;
    return {is_known ? next : end, is_known ? end - begin : 0, turns};
  }
};

/// Multiplies many rows with codes of a table. Each block of units is unpacked once.
template <NibbleReading kCodes>
void blocked_nibbles(const GemmTask& task, const CodeTable& table) {
  constexpr int V = kTileVecs;
  const CodePanelFormat& format = *task.codes;
  CodeCursor cursor(format, task.panel);
  const int64_t tiles = (task.rows + kNibbleTileRows - 1) / kNibbleTileRows;
  for (int64_t step = 0; step < task.steps; step += int64_t{kUnpackedUnits} * kCodeUnitSteps) {
    CodeBlock block;
    block.unpack(cursor, task.steps - step, task.scratch, kUnpackedUnitBytes,
                 [&](const char* codes, char* out)
                     __attribute__((always_inline)) { unpack_nibbles<true>(codes, table, out); });
    const bool is_last = task.steps - step <= int64_t{kUnpackedUnits} * kCodeUnitSteps;
    PanelPrefetch ahead = block.prefetch(task, is_last, tiles * block.count);
    const auto* const bytes = reinterpret_cast<const char*>(task.scratch);
    const auto* const inputs = reinterpret_cast<const char*>(task.lhs) + step / kCodeUnitSteps * kCodeLhsUnitBytes;
    for_row_tiles<kNibbleTileRows>(task.rows, [&](auto rows, int row) {
      constexpr int R = decltype(rows)::kCount;
      const char* const lhs = inputs + static_cast<size_t>(row) * task.lhs_stride;
      for (int i = 0; i < block.count; ++i) {
        ahead.run_some();
#pragma clang loop unroll(disable)
        for (int first = 0; first < kPanelColumns; first += V * kLanes) {
          add_nibble_unit<R, V, kCodes, CodeSource::kUnpacked>(
              format, block.units[i], table, bytes + i * kUnpackedUnitBytes + first * kInt8Depth, first,
              lhs + i * kCodeLhsUnitBytes, task.lhs_stride, task.c + row * kPanelColumns + first);
        }
      }
    });
  }
}

template <NibbleReading kCodes>
MILLRACE_INLINE void gemm_nibbles_of(const GemmTask& task) {
  const CodeTable table(*task.codes);
  clear_code_sums(task);
  if constexpr (reads_table(kCodes)) {
    if (task.rows > kMaxLookUpRows) return blocked_nibbles<kCodes>(task, table);
  }
  stream_nibble_rows<kCodes>(task, table);
}

/// Returns how the codes of a panel are read. Factors of halves come with tables only.
MILLRACE_INLINE NibbleReading nibble_reading(const CodePanelFormat& format) {
  if (format.has_half_factors()) return NibbleReading::kTableHalves;
  return format.has_table ? NibbleReading::kTable : NibbleReading::kPlain;
}

void gemm_nibbles(const GemmTask& task) {
  switch (nibble_reading(*task.codes)) {
    case NibbleReading::kPlain: return gemm_nibbles_of<NibbleReading::kPlain>(task);
    case NibbleReading::kTable: return gemm_nibbles_of<NibbleReading::kTable>(task);
    case NibbleReading::kTableHalves: return gemm_nibbles_of<NibbleReading::kTableHalves>(task);
  }
}

void quantize_lhs_codes(const float* in, int64_t count, std::byte* out) {
  quantize_lhs_groups(in, count, out, store_lhs_bytes);
}

}  // namespace
}  // namespace millrace::cpu
