#pragma once

#include "cuda/kernels.h"

/// The sizes of packed weights, and the layout of those that are not in bf16. Both the host, which packs them, and the
/// kernels include it.
///
/// A panel of 64 rows consists of steps of 64 inputs. A step begins with its codes [half of 32 inputs][16-byte
/// part][row 64][16 bytes]; a half of a row is a unit, which one thread dequantizes. Codes of 8 bits are in the order
/// of inputs. A word of codes of 4 bits has the inputs 0, 2, 4, 6, 1, 3, 5, 7 of its eight, from its lowest bits on.
/// The scales [scales_per_step][row 64] follow. One with further factors has room for those of 64 inputs.
namespace millrace::cuda {

constexpr int32_t kPanelRows = 64;
constexpr int32_t kStepInputs = 64;
constexpr int32_t kStepRowBytes = kStepInputs * 2;  ///< of one row in one step, in bf16
constexpr int32_t kPanelStepBytes = kPanelRows * kStepRowBytes;

/// Returns the byte offset of the 16-byte chunk `chunk` of a row. The layout is the same for packed weights and tokens
/// in shared memory. The order of chunks rotates with the row, so that one chunk of eight rows covers all banks. It is
/// the 128-byte swizzle of wgmma, where row 0 is aligned to kSwizzleBytes.
constexpr int32_t kSwizzleBytes = 8 * kStepRowBytes;
constexpr int32_t chunk_offset(int32_t row, int32_t chunk) {
  return row * kStepRowBytes + ((chunk ^ (row & 7)) << 4);
}

/// Returns the rows of the packed matrix before padding to whole panels.
constexpr int32_t packed_rows(int32_t out_features, bool gate_up) {
  return gate_up ? (out_features + 7) / 8 * 16 : out_features;
}
constexpr int32_t panel_count(int32_t out_features, bool gate_up) {
  return (packed_rows(out_features, gate_up) + kPanelRows - 1) / kPanelRows;
}
constexpr int32_t step_count(int32_t in_features) {
  return (in_features + kStepInputs - 1) / kStepInputs;
}

/// A step of kE4M3Both has 128 inputs: a panel's codes, which are packed as bf16 weights of half as many inputs, then
/// the scales of its rows in f32.
constexpr int32_t kFp8StepInputs = 128;
constexpr int32_t kFp8StepBytes = kPanelStepBytes + kPanelRows * 4;

/// Inputs of a unit.
constexpr int32_t kUnitInputs = 32;
constexpr int32_t kUnitsPerStep = kStepInputs / kUnitInputs;  ///< of a row
constexpr int32_t kPartBytes = 16;
/// The minimum and the maximum of step_bytes() for codes.
constexpr int32_t kMinCodedStepBytes = kPanelRows * kStepInputs / 2;
constexpr int32_t kMaxCodedStepBytes = 5 << 10;

/// Returns the 16-byte parts of a unit's codes.
constexpr int32_t unit_parts(WeightCodes codes) {
  return codes == WeightCodes::kInt8 || codes == WeightCodes::kE4M3 ? 2 : 1;
}
/// Returns the bytes of a step's codes.
constexpr int32_t step_code_bytes(WeightCodes codes) {
  return kUnitsPerStep * unit_parts(codes) * kPanelRows * kPartBytes;
}
/// Returns the bytes of one scale with what shifts its weights.
constexpr int32_t scale_bytes(CodeScales scales) {
  switch (scales) {
    case CodeScales::kBf16:
    case CodeScales::kF16: return 2;
    case CodeScales::kBf16Zero:
    case CodeScales::kF16Zero:
    case CodeScales::kF32: return 4;
    case CodeScales::kF32Zero:
    case CodeScales::kF32Minimum:
    case CodeScales::kE4M3Halves:
    case CodeScales::kInt8Halves:
    case CodeScales::kF16Factors: break;
  }
  return 8;
}
/// Returns whether scales have further factors, two bytes for each unit.
constexpr bool has_factors(CodeScales scales) {
  return scales == CodeScales::kE4M3Halves || scales == CodeScales::kInt8Halves || scales == CodeScales::kF16Factors;
}
/// Returns the bytes of one step of a panel.
constexpr int32_t step_bytes(const WeightFormat& format) {
  if (format.codes == WeightCodes::kBf16) return kPanelStepBytes;
  return step_code_bytes(format.codes) + format.scales_per_step * kPanelRows * scale_bytes(format.scales);
}
/// Returns the offset in a step of a part of a unit's codes.
constexpr int32_t part_offset(WeightCodes codes, int32_t row, int32_t half, int32_t part) {
  return ((half * unit_parts(codes) + part) * kPanelRows + row) * kPartBytes;
}
/// Returns the offset in a step of a unit's scale.
constexpr int32_t scale_offset(const WeightFormat& format, int32_t row, int32_t half) {
  const int32_t which = format.scales_per_step > 1 ? half : 0;
  return step_code_bytes(format.codes) + (which * kPanelRows + row) * scale_bytes(format.scales);
}
/// Returns the offset in a scale with factors of those of a unit.
constexpr int32_t factors_offset(const WeightFormat& format, int32_t half) {
  return 4 + (format.scales_per_step > 1 ? 0 : half * 2);
}
/// Returns the bytes of a panel of a packed weight that is not in bf16.
constexpr size_t coded_panel_bytes(const DeviceWeight& weight) {
  if (weight.format.codes == WeightCodes::kE4M3Both) {
    return static_cast<size_t>(weight.in_features / kFp8StepInputs) * kFp8StepBytes;
  }
  return static_cast<size_t>(step_count(weight.in_features)) * static_cast<size_t>(step_bytes(weight.format));
}
/// Returns the bytes of such a weight.
constexpr size_t coded_weight_bytes(const DeviceWeight& weight) {
  return static_cast<size_t>(panel_count(weight.out_features, weight.gate_up)) * coded_panel_bytes(weight);
}

}  // namespace millrace::cuda
