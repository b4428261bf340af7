#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tensor/host_tensor.h"

/// Weights of 8 bits. A weight is an int8 from -127 to 127 times the scale of its group: 32 neighbours along the input
/// dimension. Scales are bf16, half a bit per weight. Values are rounded by the stored scale, so its short mantissa
/// costs no accuracy.
///
/// Scales may be powers of two, like MXINT8 of the OCP Microscaling specification, version 1.0: 2 to the exponent of
/// the largest magnitude, over 64. Dequantized weights are then exact in bf16, which some kernels multiply faster. The
/// rounding error is about 1.4 times as large on average.
///
/// Alternatively all weights of a row, which is one output channel, share a scale. With inputs quantized per row, GEMMs
/// then sum integers and scale once at the end, which is fastest.
namespace millrace::tensor {

/// Weights per scale along the input dimension.
inline constexpr int64_t kW8Group = 32;

/// How the inputs of a GEMM with 8-bit weights are represented. kInt8 quantizes each group of 32 inputs to int8 with an
/// f32 scale, the largest magnitude over 127. Weights with one scale per row always use kInt8, with one scale per input
/// row.
enum class W8Activations : uint8_t { kUnquantized, kInt8 };

/// The weights that share a scale, and how the scale is chosen.
enum class W8Scaling : uint8_t {
  kPerGroup,            ///< per group, by its largest magnitude
  kPerGroupPowerOfTwo,  ///< per group, a power of two
  kPerChannel,          ///< per row, by its largest magnitude
};

/// Returns the groups in a row of `cols` weights; the last group may be shorter.
[[nodiscard]] constexpr int64_t w8_groups(int64_t cols) {
  return (cols + kW8Group - 1) / kW8Group;
}

/// A matrix [rows, cols] in host memory, borrowed; either pointer may be unaligned.
struct W8Matrix {
  std::string name;
  int64_t rows = 0;
  int64_t cols = 0;
  const std::byte* values = nullptr;  // int8 [rows, cols]
  const std::byte* scales = nullptr;  // [rows, groups()]
  bool per_channel_scales = false;
  DType scale_dtype = DType::kBF16;  ///< differs from bf16 only with per_channel_scales
  [[nodiscard]] int64_t groups() const { return per_channel_scales ? 1 : w8_groups(cols); }
  [[nodiscard]] size_t bytes() const {
    return static_cast<size_t>(rows * cols) + static_cast<size_t>(rows * groups()) * size_of(scale_dtype);
  }
  [[nodiscard]] float scale(int64_t row, int64_t group) const;
};

/// Returns the weights of a matrix, [rows, cols].
[[nodiscard]] std::vector<float> dequantize(const W8Matrix& matrix);

/// An 8-bit matrix [rows, cols] that owns its values and scales.
struct W8Storage {
  std::string name;
  Shape shape;
  std::vector<int8_t> values;    // [rows, cols]
  std::vector<BFloat16> scales;  // [rows, w8_groups(cols)], or with per_channel_scales [rows]
  bool per_channel_scales = false;
  [[nodiscard]] W8Matrix view() const;
};

/// Quantizes a matrix to the nearest values. The largest magnitude of a group or row becomes 127; with powers of two it
/// becomes 64 to 127. A group with a non-finite weight becomes NaN; a group of weights below 2^-100 becomes zero.
/// `threads` is the maximum; 0 means one per processor.
[[nodiscard]] W8Storage quantize_w8(const HostTensor& matrix, W8Scaling scaling = W8Scaling::kPerGroup,
                                    int32_t threads = 0);

}  // namespace millrace::tensor
