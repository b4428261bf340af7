#include "cpu/blocked_product.h"

#include "base/check.h"

namespace millrace::cpu {
namespace {

constexpr int64_t kVectorRows = 128;
constexpr int64_t kMostTiledRows = 512;
constexpr int64_t kSharedPanels = 8;  // a power of two, so that blocks of any product nest

auto product_kernel(const Device& device, const PanelLayout& layout) {
  const Kernels& kernels = device.kernels;
  switch (layout.format) {
    case PanelFormat::kInt8: return kernels.product_int8;
    case PanelFormat::kChannels: return kernels.product_channels;
    case PanelFormat::kW8: return device.bf16_left() ? kernels.product_w8_bf16 : kernels.product_w8_f32;
    case PanelFormat::kCompute: break;
  }
  return device.compute_dtype == tensor::DType::kBF16 ? kernels.product_bf16 : kernels.product_f32;
}

}  // namespace

BlockedProduct::BlockedProduct(const Device& device, const LeftRows& left, int64_t rows, const CpuPackedWeight& weight)
    : weight_(weight),
      kernel_(product_kernel(device, weight.layout())),
      left_(left),
      rows_(rows),
      blocking_(choose_blocking(left.tiled(), rows, weight.steps())),
      w8_bytes_(weight.layout().format == PanelFormat::kW8 ? kW8ScratchBytes : 0),
      row_blocks_((rows + blocking_.rows - 1) / blocking_.rows),
      panel_blocks_((weight.panel_count() + blocking_.panels - 1) / blocking_.panels) {
  CHECK(scratch_bytes() <= kMostScratchBytes, "a block of {} bytes of scratch", scratch_bytes());
}

size_t BlockedProduct::scratch_bytes() const {
  return static_cast<size_t>(blocking_.panels * blocking_.rows) * kPanelColumns * sizeof(float) + w8_bytes_;
}

/// Tiles multiply faster than memory brings panels, so as many rows share one as the second-level cache holds, but not
/// all steps of them where those are many: then some panels share some steps of the rows, as many as it has room for
/// their sums.
BlockedProduct::Blocking BlockedProduct::choose_blocking(bool tiled, int64_t rows, int64_t steps) {
  constexpr int64_t kLeftBytes = int64_t{1} << 20;
  if (!tiled) return {kVectorRows, steps, 1};
  const auto equal_blocks = [&](int64_t most) {
    const int64_t blocks = (rows + most - 1) / most;
    return round_up((rows + blocks - 1) / blocks, 2 * kTileHeight);
  };
  const int64_t fitting = kLeftBytes / (steps * 4) / (2 * kTileHeight) * 2 * kTileHeight;
  if (fitting >= std::min(rows, kMostTiledRows / 2)) {
    return {equal_blocks(std::min(fitting, kMostTiledRows)), steps, 1};
  }
  return {equal_blocks(kMostTiledRows / 2), kLeftBytes / 2 / (kMostTiledRows / 2) / 4, kSharedPanels};
}

void BlockedProduct::multiply(int64_t first_row, int64_t rows, int64_t first_panel, int64_t panels, std::byte* scratch,
                              float* c) const {
  const int64_t end = first_panel + panels;
  const bool of_channels = weight_.layout().format == PanelFormat::kChannels;
  for (int64_t step = 0; step < weight_.steps(); step += blocking_.steps) {
    const int64_t next_step = step + blocking_.steps;
    const auto what_follows = [&](int64_t panel) -> const std::byte* {
      if (panel + 1 < end) return weight_.panel(panel + 1, step);
      if (next_step < weight_.steps()) return weight_.panel(first_panel, next_step);
      return end < weight_.panel_count() ? weight_.panel(end) : nullptr;
    };
    for (int64_t panel = first_panel; panel < end; ++panel) {
      kernel_({.left = left_.at(first_row, step),
               .left_stride = left_.stride,
               .tiled_left = left_.tiled(),
               .panel = weight_.panel(panel, step),
               .next = what_follows(panel),
               .steps = std::min(blocking_.steps, weight_.steps() - step),
               .rows = static_cast<int>(rows),
               .c = c + (panel - first_panel) * blocking_.rows * kPanelColumns,
               .accumulate = step > 0,
               .scratch = scratch,
               .factors = of_channels ? left_.factors + first_row : nullptr,
               .column_scales = of_channels ? weight_.column_scales(panel) : nullptr,
               .completes = next_step >= weight_.steps()});
    }
  }
}

}  // namespace millrace::cpu
