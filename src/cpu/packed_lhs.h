#pragma once

#include "cpu/device.h"
#include "cpu/packed_weight.h"
#include "tensor/backend.h"

namespace millrace::cpu {

/// The LHS operand of a GEMM: rows of whole steps in the kernels' format.
struct PackedLhs {
  const std::byte* data = nullptr;
  size_t stride = 0;                             ///< per 16 rows when tiled, otherwise per row
  size_t step_stride = 0;                        ///< per step of 16 rows; 0: not tiled
  size_t row_step_bytes = 0;                     ///< per step of a row that is not tiled, scales of groups included
  const LhsQuantParams* quant_params = nullptr;  ///< [shards][rows], for channel panels

  [[nodiscard]] bool tiled() const { return step_stride != 0; }
  [[nodiscard]] const std::byte* at(int64_t row, int64_t step) const {
    if (!tiled()) return data + static_cast<size_t>(row) * stride + static_cast<size_t>(step) * row_step_bytes;
    return data + static_cast<size_t>(row / kTileHeight) * stride + static_cast<size_t>(step) * step_stride;
  }
};

/// Returns x in the kernels' format. It uses x itself where possible. Otherwise it makes a copy in scratch, widened,
/// padded with zeros, tiled or quantized, that is valid until the next op. `magnitudes` [rows], for channel panels
/// only, are the largest magnitudes of rows of which x has a part; null: x has whole rows.
[[nodiscard]] PackedLhs pack_lhs(Device& device, const tensor::Matrix& x, const PanelLayout& layout,
                                 const float* magnitudes = nullptr);

/// The memory of an LHS operand that is written piece by piece.
struct LhsBuffer {
  std::byte* data = nullptr;  // [LhsPacker::bytes(rows)], 64-byte aligned
  int64_t rows = 0;
};

/// Writes LHS operands row by row, or 32 elements of a row at a time, instead of from a whole matrix. The result equals
/// that of pack_lhs(). An encoded row or group is in the kernels' format, padding included. Any threads may write
/// different rows or groups.
class LhsPacker {
 public:
  /// Prepares operands with `cols` elements per row for GEMMs with weights of `layout`.
  LhsPacker(const Device& device, const PanelLayout& layout, int64_t cols);

  [[nodiscard]] size_t row_bytes() const { return row_bytes_; }  ///< of an encoded row
  static constexpr size_t kMaxGroupBytes = 128;                  ///< of an encoded group
  /// Returns whether a group can be encoded on its own; it cannot where a row has a single scale.
  [[nodiscard]] bool has_groups() const { return format_ != PanelFormat::kW8A8Channel; }
  /// Returns the bytes of an operand of `rows` rows, a multiple of 64.
  [[nodiscard]] size_t bytes(int64_t rows) const;
  /// Returns the maximum bytes of `operands` operands with `rows` rows in total.
  [[nodiscard]] size_t max_bytes(int64_t rows, int64_t operands) const;
  [[nodiscard]] PackedLhs view(LhsBuffer operand) const;

  /// Packs a row of x in the compute dtype. `widened` is scratch [cols].
  void encode_row(const tensor::Matrix& x, int64_t row, float* widened, std::byte* out) const;
  /// Packs a group of `values` [32], which it rounds to the compute dtype in place.
  void encode_group(float* values, std::byte* out) const;
  void put_row(const std::byte* encoded, LhsBuffer to, int64_t row) const;
  void put_group(const std::byte* encoded, LhsBuffer to, int64_t row, int64_t group) const;

 private:
  [[nodiscard]] bool tiles(int64_t rows) const { return may_tile_ && rows > kTileHeight; }
  /// Returns the bytes of the quant_params of channel rows, which precede the rows.
  [[nodiscard]] size_t quant_param_bytes(int64_t rows) const;

  const Device& device_;
  PanelFormat format_;
  bool has_int8_groups_;
  bool may_tile_;
  bool widened_;  // to f32, from bf16
  int64_t cols_;
  int64_t groups_;      // of 32 elements of a row, the last maybe cut; of channels runs of steps
  size_t group_bytes_;  // encoded
  size_t row_bytes_;
  size_t tile_bytes_;  // of a group of 16 rows, where there are tiles
};

}  // namespace millrace::cpu
