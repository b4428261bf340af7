#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tensor/host_tensor.h"

/// Weight-only 8 bit: a weight is an int8 from -127 to 127 times the scale of its group, 32 neighbours along the input
/// dimension. Scales are bf16: half a bit per weight. Values are rounded by the scale as it is stored, so that its few
/// bits cost no accuracy.
///
/// A scale may also be a power of two, as the microscaling formats have it (MXINT8 of the OCP's specification, version
/// 1.0: 2 to the exponent of the largest magnitude, over 64). What then stands for a weight is exact in bf16, which
/// some kernels multiply faster; it is some 1.4 times as far from the weight on average.
///
/// Or all weights of a row, which make one output feature (a channel), have one scale. Then products with inputs that
/// are rounded by row as well are sums of whole numbers alone, scaled at the end: the fastest there is.
namespace millrace::tensor {

inline constexpr int64_t kW8Group = 32;

/// What rows such a matrix is multiplied with: as they are, or rounded too, each group of 32 to int8 with a scale in
/// f32 (its largest magnitude over 127), so that products are of whole numbers. Where the matrix has one scale per row,
/// so have they, and they are always rounded.
enum class W8Activations : uint8_t { kUnquantized, kInt8 };

enum class W8Scaling : uint8_t {
  kPerGroup,            ///< of each group, by its largest magnitude
  kPerGroupPowerOfTwo,  ///< of each group
  kPerChannel,          ///< of each row, by its largest magnitude
};

/// The groups of a row of `cols` weights; the last may be shorter.
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
  DType scale_dtype = DType::kBF16;  ///< another one with per_channel_scales only
  [[nodiscard]] int64_t groups() const { return per_channel_scales ? 1 : w8_groups(cols); }
  [[nodiscard]] size_t bytes() const {
    return static_cast<size_t>(rows * cols) + static_cast<size_t>(rows * groups()) * size_of(scale_dtype);
  }
  [[nodiscard]] float scale(int64_t row, int64_t group) const;
};

/// A matrix that owns its values.
struct W8Storage {
  std::string name;
  Shape shape;
  std::vector<int8_t> values;    // [rows, cols]
  std::vector<BFloat16> scales;  // [rows, w8_groups(cols)], or with per_channel_scales [rows]
  bool per_channel_scales = false;
  [[nodiscard]] W8Matrix view() const;
};

/// Rounds a matrix to the nearest values; the largest magnitude of a group, or of a row, becomes 127, or with powers of
/// two one from 64 to 127. A group with a weight that is not finite becomes NaN, one whose weights are all below 2^-100
/// becomes zero. `threads`: at most; 0: one per processor.
[[nodiscard]] W8Storage quantize_w8(const HostTensor& matrix, W8Scaling scaling = W8Scaling::kPerGroup,
                                    int32_t threads = 0);

}  // namespace millrace::tensor
