#pragma once

// Codes of other than 4 bits as bytes, from the runs of a panel. Included only by kernels.cc.

#include "cpu/code_runs.h"
#include "cpu/nibble_kernel.h"

namespace millrace::cpu {
namespace {

/// Returns the codes of step `step` of a run from its lines, of those without a line of their own.
template <int kBits>
MILLRACE_INLINE Bits join_pieces(const Bits* lines, int step) {
  constexpr CodeRuns kRuns = code_runs(kBits);
  Bits codes = {};
#pragma clang loop unroll(full)
  for (int i = 0; i < kRuns.piece_count; ++i) {
    const CodePiece& piece = kRuns.pieces[i];
    if (piece.step != step) continue;
    const Bits bits = lines[piece.line] >> static_cast<uint32_t>(piece.line_bit - piece.code_bit);
    codes |= bits & (((1u << piece.count) - 1u) << piece.code_bit) * 0x01010101u;
  }
  return codes;
}

/// Calls body(step, codes) with the codes of steps [kFirst, kFirst + kSteps) of a run for 16 columns, whose lines begin
/// at `from`. `step` counts from kFirst on.
template <int kBits, int kFirst = 0, int kSteps = code_runs(kBits).steps, class Body>
MILLRACE_INLINE void for_run(const char* from, Body&& body) {
  constexpr CodeRuns kRuns = code_runs(kBits);
  constexpr uint32_t kMask = ((1u << kBits) - 1u) * 0x01010101u;
  Bits lines[kRuns.lines];
#pragma clang loop unroll(full)
  for (int i = 0; i < kRuns.lines; ++i) {
    lines[i] = load_as<Bits>(from + i * kRunLineBytes);
    if (kFirst <= i && i < kFirst + kSteps) body(i - kFirst, reinterpret_cast<Ints>(lines[i] & kMask));
  }
#pragma clang loop unroll(full)
  for (int step = kRuns.lines; step < kFirst + kSteps; ++step) {
    if (step >= kFirst) body(step - kFirst, reinterpret_cast<Ints>(join_pieces<kBits>(lines, step)));
  }
}

/// Unpacks a unit to one byte per code, [8 steps][64][4].
template <int kBits>
MILLRACE_INLINE void unpack_runs(const char* codes, char* out) {
  constexpr CodeRuns kRuns = code_runs(kBits);
#pragma clang loop unroll(disable)
  for (int run = 0; run < kRuns.count(); ++run, codes += kRuns.bytes(), out += kRuns.steps * kCodeStepBytes) {
#pragma clang loop unroll(full)
    for (int v = 0; v < kPanelVectors; ++v) {
      for_run<kBits>(codes + v * kRuns.vector_bytes(), [&](int step, Ints columns) __attribute__((always_inline)) {
        store_as(out + step * kCodeStepBytes + v * kRunLineBytes, columns);
      });
    }
  }
}

}  // namespace
}  // namespace millrace::cpu
