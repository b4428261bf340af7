#pragma once

// GEMM of panels of codes with 8-bit rows on tile registers (AMX), and of those of 4 bits. Included only by kernels.cc.

#include "cpu/amx_w8a8_kernel.h"
#include "cpu/nibble_kernel.h"

namespace millrace::cpu {
namespace {

/// Adds the sums of `rows` rows of a tile by 32 columns of a unit, or of its half `part`, times their scales, to c.
template <CodeOffsetType kType>
MILLRACE_INLINE void add_code_tile(const CodePanelFormat& format, const Int8LhsTile& lhs, int rows,
                                   const CodeTerms (&terms)[2], int part, const int32_t (*sums)[32], float* c) {
  const int offset = code_offset(format);
  for (int row = 0; row < rows; ++row, c += kPanelColumns) {
    const LhsQuantParams params = {.scale = lhs.scale[row], .compensation = lhs.compensation[row]};
    CodeLhs of_row(params);
    if (kType == CodeOffsetType::kMinimums && format.has_half_minimums)
      of_row.input_sum = half_input_sum(reinterpret_cast<const char*>(lhs.values[row]) + part * (kW8GroupElements / 2));
    const Ints addend = code_addend<false>(params, offset, nullptr);
#pragma clang loop unroll(full)
    for (int v = 0; v < 2; ++v) {
      const Ints sum = load_as<Ints>(&sums[row][v * kLanes]) + addend;
      store(c + v * kLanes, add_code_sums<kType>(sum, terms[v], of_row, load(c + v * kLanes)));
    }
  }
}

/// Unpacks the codes of a block. Where the halves of units have factors of their own, a unit becomes two, each with the
/// other half's weights zero.
template <bool kHalves, class UnpackUnit>
MILLRACE_INLINE void unpack_tiled_block(const CodePanelFormat& format, CodeCursor& cursor, int64_t steps,
                                        std::byte* scratch, CodeBlock& block, UnpackUnit&& unpack_unit) {
  constexpr int kHalfBytes = kUnpackedUnitBytes / 2;
  constexpr int kStride = kUnpackedUnitBytes * (kHalves ? 2 : 1);
  static_assert(kUnpackedUnits * kStride <= static_cast<int>(kW8ScratchBytes));
  block.unpack(cursor, steps, scratch, kStride, [&](const char* codes, char* out) __attribute__((always_inline)) {
    unpack_unit(codes, out);
    if constexpr (kHalves) {
      __builtin_memcpy(out + 3 * kHalfBytes, out + kHalfBytes, kHalfBytes);
      __builtin_memset(out + kHalfBytes, format.offset, 2 * kHalfBytes);
    }
  });
}

/// Multiplies up to 32 rows by 32 columns from `column` on over a block of units of `kParts` parts. The tiles of a part
/// run while the previous part's sums are added.
template <bool kBoth, int kParts>
MILLRACE_INLINE void code_columns(const CodePanelFormat& format, const CodeBlock& block, const char* unpacked,
                                  const Int8LhsTile* upper, const Int8LhsTile* lower, int rows, int column, float* c,
                                  PanelPrefetch& ahead) {
  Int8Buffer buffer[2];
  const int upper_rows = rows < kTileHeight ? rows : kTileHeight;
  const char* columns = unpacked + column * kInt8Depth;
  int8_square<kBoth>(upper, lower, columns, buffer[0].sums);
  for (int at = 0; at < block.count * kParts; ++at) {
    const int unit = at / kParts;
    if (at % kParts == 0) ahead.run_some();
    if (const int next = at + 1; next < block.count * kParts) {
      int8_square<kBoth>(upper + next / kParts, lower + next / kParts, columns + next * kUnpackedUnitBytes,
                         buffer[next % 2].sums);
    }
    const int vec = column / kLanes;
    const CodeTerms terms[2] = {load_code_terms(format, block.units[unit], vec, at % kParts),
                                load_code_terms(format, block.units[unit], vec + 1, at % kParts)};
    const Int8Sums& sums = buffer[at % 2].sums;
    with_code_offsets(format.offset_type, [&](auto type) __attribute__((always_inline)) {
      constexpr CodeOffsetType kType = decltype(type)::kValue;
      add_code_tile<kType>(format, upper[unit], upper_rows, terms, at % kParts, sums, c);
      if constexpr (kBoth) {
        add_code_tile<kType>(format, lower[unit], rows - kTileHeight, terms, at % kParts, sums + kTileHeight,
                             c + kTileHeight * kPanelColumns);
      }
    });
  }
}

/// Multiplies tiled rows with codes that unpack_unit(codes, bytes) writes as bytes.
template <bool kHalves, class UnpackUnit>
MILLRACE_INLINE void tiled_codes(const GemmTask& task, UnpackUnit&& unpack_unit) {
  constexpr int kParts = kHalves ? 2 : 1;
  const CodePanelFormat& format = *task.codes;
  CodeCursor cursor(format, task.panel);
  const int squares = (task.rows + kSquareRows - 1) / kSquareRows;
  if (!task.accumulate) clear_code_sums(task);
  configure_int8();
  for (int64_t step = 0; step < task.steps; step += int64_t{kUnpackedUnits} * kCodeUnitSteps) {
    CodeBlock block;
    unpack_tiled_block<kHalves>(format, cursor, task.steps - step, task.scratch, block, unpack_unit);
    const bool is_last = task.steps - step <= int64_t{kUnpackedUnits} * kCodeUnitSteps;
    PanelPrefetch ahead = block.prefetch(task, is_last, 2 * squares * block.count);
    const auto* const unpacked = reinterpret_cast<const char*>(task.scratch);
    for (int column = 0; column < kPanelColumns; column += 32) {
      for (int row = 0; row < task.rows; row += kSquareRows) {
        const int rows = task.rows - row < kSquareRows ? task.rows - row : kSquareRows;
        const char* at =
            reinterpret_cast<const char*>(task.lhs) + static_cast<size_t>(row / kTileHeight) * task.lhs_stride;
        const auto* upper = reinterpret_cast<const Int8LhsTile*>(at) + step / kCodeUnitSteps;
        const auto* lower = reinterpret_cast<const Int8LhsTile*>(at + task.lhs_stride) + step / kCodeUnitSteps;
        float* const c = task.c + row * kPanelColumns + column;
        if (rows > kTileHeight) {
          code_columns<true, kParts>(format, block, unpacked, upper, lower, rows, column, c, ahead);
        } else {
          code_columns<false, kParts>(format, block, unpacked, upper, upper, rows, column, c, ahead);
        }
      }
    }
  }
  _tile_release();
}

template <NibbleReading kCodes>
void tiled_nibbles(const GemmTask& task) {
  const CodeTable table(*task.codes);
  tiled_codes<kCodes == NibbleReading::kTableHalves>(
      task, [&table](const char* codes, char* out) { unpack_nibbles<reads_table(kCodes)>(codes, table, out); });
}

void gemm_nibbles_amx(const GemmTask& task) {
  if (!task.tiled_lhs) return gemm_nibbles(task);
  switch (nibble_reading(*task.codes)) {
    case NibbleReading::kPlain: return tiled_nibbles<NibbleReading::kPlain>(task);
    case NibbleReading::kTable: return tiled_nibbles<NibbleReading::kTable>(task);
    case NibbleReading::kTableHalves: return tiled_nibbles<NibbleReading::kTableHalves>(task);
  }
}

}  // namespace
}  // namespace millrace::cpu
