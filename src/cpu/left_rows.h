#pragma once

#include "cpu/device.h"
#include "cpu/packed_weight.h"
#include "tensor/backend.h"

namespace millrace::cpu {

/// The left operand of a product: rows of whole steps in the format that the kernels read.
struct LeftRows {
  const std::byte* data = nullptr;
  size_t stride = 0;       ///< tiled: of 16 rows, otherwise of one
  size_t step_stride = 0;  ///< of a step of 16 rows; 0: not tiled

  [[nodiscard]] bool tiled() const { return step_stride != 0; }
  [[nodiscard]] const std::byte* at(int64_t row, int64_t step) const {
    if (!tiled()) return data + static_cast<size_t>(row) * stride;  // of all steps
    return data + static_cast<size_t>(row / kTileHeight) * stride + static_cast<size_t>(step) * step_stride;
  }
};

/// Uses x itself where it already is in the kernels' format; otherwise a copy in scratch that lasts until the next op:
/// widened, padded with zeros, tiled, or rounded to 8 bits.
[[nodiscard]] LeftRows prepare_left(Device& device, const tensor::Matrix& x, const PanelLayout& layout);

}  // namespace millrace::cpu
