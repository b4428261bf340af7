#pragma once

#include "cpu/device.h"
#include "cpu/packed_weight.h"
#include "tensor/backend.h"

namespace millrace::cpu {

/// The LHS operand of a product: rows of whole steps in the format that the kernels read.
struct PackedLhs {
  const std::byte* data = nullptr;
  size_t stride = 0;                             ///< tiled: of 16 rows, otherwise of one
  size_t step_stride = 0;                        ///< of a step of 16 rows; 0: not tiled
  const LhsQuantParams* quant_params = nullptr;  ///< [rows], for panels of channels

  [[nodiscard]] bool tiled() const { return step_stride != 0; }
  [[nodiscard]] const std::byte* at(int64_t row, int64_t step) const {
    if (!tiled()) return data + static_cast<size_t>(row) * stride;  // of all steps
    return data + static_cast<size_t>(row / kTileHeight) * stride + static_cast<size_t>(step) * step_stride;
  }
};

/// Uses x itself where it already is in the kernels' format; otherwise a copy in scratch that lasts until the next op:
/// widened, padded with zeros, tiled, or rounded to 8 bits.
[[nodiscard]] PackedLhs pack_lhs(Device& device, const tensor::Matrix& x, const PanelLayout& layout);

/// The memory of an LHS operand that is written piece by piece.
struct LhsBuffer {
  std::byte* data = nullptr;  // [LhsPacker::bytes(rows)], 64-byte aligned
  int64_t rows = 0;
};

/// LHS operands that are written row by row, or 32 elements of a row at a time, rather than made of a whole matrix;
/// what they hold, products find as pack_lhs() would have made it. Encoded is what a row, or a group of it, is in
/// the kernels' format, its padding included. Any threads write different rows or groups.
class LhsPacker {
 public:
  /// For products with weights of `layout`, whose inputs have `cols` elements.
  LhsPacker(const Device& device, const PanelLayout& layout, int64_t cols);

  [[nodiscard]] size_t row_bytes() const { return row_bytes_; }  ///< of an encoded row
  static constexpr size_t kMaxGroupBytes = 128;                  ///< of an encoded group
  /// Whether a group can be encoded on its own: not where a row has one scale.
  [[nodiscard]] bool has_groups() const { return format_ != PanelFormat::kW8A8Channel; }
  /// Of an operand of so many rows, a multiple of 64.
  [[nodiscard]] size_t bytes(int64_t rows) const;
  /// At most, of operands that have so many rows together.
  [[nodiscard]] size_t max_bytes(int64_t rows, int64_t operands) const;
  [[nodiscard]] PackedLhs view(LhsBuffer operand) const;

  /// Of a row of x, in the compute dtype. `widened`: scratch [cols].
  void encode_row(const tensor::Matrix& x, int64_t row, float* widened, std::byte* out) const;
  /// Of a group, rounded to the compute dtype; `values` [32] are written to.
  void encode_group(float* values, std::byte* out) const;
  void put_row(const std::byte* encoded, LhsBuffer to, int64_t row) const;
  void put_group(const std::byte* encoded, LhsBuffer to, int64_t row, int64_t group) const;

 private:
  [[nodiscard]] bool tiles(int64_t rows) const { return may_tile_ && rows > kTileHeight; }
  /// Of the quant_params of channels, which lie before the rows.
  [[nodiscard]] size_t quant_param_bytes(int64_t rows) const;

  const Device& device_;
  PanelFormat format_;
  bool may_tile_;
  bool widened_;  // to f32, from bf16
  int64_t cols_;
  int64_t groups_;      // of 32 elements of a row, the last maybe cut; of channels runs of steps
  size_t group_bytes_;  // encoded
  size_t row_bytes_;
  size_t tile_bytes_;  // of a group of 16 rows, where there are tiles
};

}  // namespace millrace::cpu
