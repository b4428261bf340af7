#pragma once

#include <cstdint>

#include "cpu/kernels.h"

/// Where the bits of codes of other than 4 bits lie in the panels of kernels.h.
namespace millrace::cpu {

inline constexpr int kNibbleBits = 4;
inline constexpr int kByteBits = 8;
inline constexpr int kRunLineBytes = 64;  ///< of 16 columns with four inputs each
inline constexpr int kPanelVectors = kPanelColumns * kInt8Depth / kRunLineBytes;

/// Some bits of a code that has no line of its own: `count` bits from `code_bit` on are those of a line from `line_bit`
/// on.
struct CodePiece {
  int step;
  int line;
  int line_bit;
  int code_bit;
  int count;
};

/// The steps of a unit whose codes share lines of bytes. The first steps have a line each, in its lower bits. The bits
/// above have the codes of the other steps.
struct CodeRuns {
  int bits;
  int steps;  ///< per run
  int lines;  ///< per run and 16 columns
  int piece_count = 0;
  CodePiece pieces[7] = {};

  [[nodiscard]] constexpr int count() const { return kCodeUnitSteps / steps; }
  [[nodiscard]] constexpr int vector_bytes() const { return lines * kRunLineBytes; }
  [[nodiscard]] constexpr int bytes() const { return kPanelVectors * vector_bytes(); }
};

inline constexpr CodeRuns kTwoBitRuns = {.bits = 2,
                                         .steps = 4,
                                         .lines = 1,
                                         .piece_count = 3,
                                         .pieces = {{.step = 1, .line = 0, .line_bit = 2, .code_bit = 0, .count = 2},
                                                    {.step = 2, .line = 0, .line_bit = 4, .code_bit = 0, .count = 2},
                                                    {.step = 3, .line = 0, .line_bit = 6, .code_bit = 0, .count = 2}}};
inline constexpr CodeRuns kThreeBitRuns = {
    .bits = 3,
    .steps = 8,
    .lines = 3,
    .piece_count = 7,
    .pieces = {{.step = 3, .line = 0, .line_bit = 3, .code_bit = 0, .count = 3},
               {.step = 4, .line = 1, .line_bit = 3, .code_bit = 0, .count = 3},
               {.step = 5, .line = 2, .line_bit = 3, .code_bit = 0, .count = 3},
               {.step = 6, .line = 0, .line_bit = 6, .code_bit = 1, .count = 2},
               {.step = 6, .line = 1, .line_bit = 6, .code_bit = 0, .count = 1},
               {.step = 7, .line = 2, .line_bit = 6, .code_bit = 1, .count = 2},
               {.step = 7, .line = 1, .line_bit = 7, .code_bit = 0, .count = 1}}};
inline constexpr CodeRuns kFiveBitRuns = {.bits = 5,
                                          .steps = 8,
                                          .lines = 5,
                                          .piece_count = 7,
                                          .pieces = {{.step = 5, .line = 0, .line_bit = 5, .code_bit = 2, .count = 3},
                                                     {.step = 5, .line = 1, .line_bit = 6, .code_bit = 0, .count = 2},
                                                     {.step = 6, .line = 2, .line_bit = 5, .code_bit = 2, .count = 3},
                                                     {.step = 6, .line = 3, .line_bit = 6, .code_bit = 0, .count = 2},
                                                     {.step = 7, .line = 4, .line_bit = 5, .code_bit = 2, .count = 3},
                                                     {.step = 7, .line = 1, .line_bit = 5, .code_bit = 1, .count = 1},
                                                     {.step = 7, .line = 3, .line_bit = 5, .code_bit = 0, .count = 1}}};
inline constexpr CodeRuns kSixBitRuns = {.bits = 6,
                                         .steps = 4,
                                         .lines = 3,
                                         .piece_count = 3,
                                         .pieces = {{.step = 3, .line = 0, .line_bit = 6, .code_bit = 4, .count = 2},
                                                    {.step = 3, .line = 1, .line_bit = 6, .code_bit = 2, .count = 2},
                                                    {.step = 3, .line = 2, .line_bit = 6, .code_bit = 0, .count = 2}}};
inline constexpr CodeRuns kByteRuns = {.bits = 8, .steps = 1, .lines = 1};

/// Returns the runs of codes of 2, 3, 5, 6 or 8 bits.
[[nodiscard]] constexpr const CodeRuns& code_runs(int bits) {
  switch (bits) {
    case 2: return kTwoBitRuns;
    case 3: return kThreeBitRuns;
    case 5: return kFiveBitRuns;
    case 6: return kSixBitRuns;
    default: return kByteRuns;
  }
}

/// Says whether each bit of each code of a run lies somewhere, and no two at one place.
[[nodiscard]] constexpr bool holds_all_codes(const CodeRuns& runs) {
  uint32_t lines[8] = {};
  uint32_t codes[8] = {};
  for (int line = 0; line < runs.lines; ++line) lines[line] = codes[line] = (1u << runs.bits) - 1;
  for (int i = 0; i < runs.piece_count; ++i) {
    const CodePiece& piece = runs.pieces[i];
    const uint32_t bits = (1u << piece.count) - 1u;
    if ((lines[piece.line] & (bits << piece.line_bit)) != 0 || (codes[piece.step] & (bits << piece.code_bit)) != 0)
      return false;
    lines[piece.line] |= bits << piece.line_bit;
    codes[piece.step] |= bits << piece.code_bit;
  }
  for (int line = 0; line < runs.lines; ++line) {
    if (lines[line] != 255) return false;
  }
  for (int step = 0; step < runs.steps; ++step) {
    if (codes[step] != (1u << runs.bits) - 1) return false;
  }
  return true;
}
static_assert(holds_all_codes(kTwoBitRuns) && holds_all_codes(kThreeBitRuns) && holds_all_codes(kFiveBitRuns) &&
              holds_all_codes(kSixBitRuns) && holds_all_codes(kByteRuns));

}  // namespace millrace::cpu
