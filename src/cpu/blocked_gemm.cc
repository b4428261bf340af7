#include "cpu/blocked_gemm.h"

#include "base/check.h"

namespace millrace::cpu {
namespace {

constexpr int64_t kVectorRows = 128;
constexpr int64_t kMaxTiledRows = 512;
constexpr int64_t kSharedPanels = 8;  // a power of two, so that blocks of any GEMM nest

auto select_gemm_kernel(const Device& device, const PanelLayout& layout) {
  const Kernels& kernels = device.kernels;
  switch (layout.format) {
    case PanelFormat::kW8A8: return kernels.gemm_w8a8;
    case PanelFormat::kW8A8Channel: return kernels.gemm_w8a8_channel;
    case PanelFormat::kW8: return device.bf16_lhs() ? kernels.gemm_w8_bf16 : kernels.gemm_w8_f32;
    case PanelFormat::kCompute: break;
  }
  return device.compute_dtype == tensor::DType::kBF16 ? kernels.gemm_bf16 : kernels.gemm_f32;
}

}  // namespace

BlockedGemm::BlockedGemm(const Device& device, const PackedLhs& lhs, int64_t rows, const CpuPackedWeight& weight)
    : weight_(weight),
      kernel_(select_gemm_kernel(device, weight.layout())),
      lhs_(lhs),
      rows_(rows),
      blocking_(choose_blocking(lhs.tiled(), rows, weight.steps())),
      w8_bytes_(weight.layout().format == PanelFormat::kW8 ? kW8ScratchBytes : 0),
      row_blocks_((rows + blocking_.rows - 1) / blocking_.rows),
      panel_blocks_((weight.panel_count() + blocking_.panels - 1) / blocking_.panels) {
  CHECK(scratch_bytes() <= kMaxScratchBytes, "a block of {} bytes of scratch", scratch_bytes());
}

size_t BlockedGemm::scratch_bytes() const {
  return static_cast<size_t>(blocking_.panels * blocking_.rows) * kPanelColumns * sizeof(float) + w8_bytes_;
}

/// Chooses blocks whose LHS rows fit the second-level cache. Tiles multiply faster than memory delivers panels, so as
/// many rows as possible share a panel. When the rows have too many steps to fit, some panels share some of the steps,
/// limited by the room for their sums.
BlockedGemm::Blocking BlockedGemm::choose_blocking(bool tiled, int64_t rows, int64_t steps) {
  constexpr int64_t kLhsBytes = int64_t{1} << 20;
  if (!tiled) return {kVectorRows, steps, 1};
  const auto equal_blocks = [&](int64_t most) {
    const int64_t blocks = (rows + most - 1) / most;
    return round_up((rows + blocks - 1) / blocks, 2 * kTileHeight);
  };
  const int64_t fitting = kLhsBytes / (steps * 4) / (2 * kTileHeight) * 2 * kTileHeight;
  if (fitting >= std::min(rows, kMaxTiledRows / 2)) {
    return {equal_blocks(std::min(fitting, kMaxTiledRows)), steps, 1};
  }
  return {equal_blocks(kMaxTiledRows / 2), kLhsBytes / 2 / (kMaxTiledRows / 2) / 4, kSharedPanels};
}

void BlockedGemm::multiply(int64_t first_row, int64_t rows, int64_t first_panel, int64_t panels, std::byte* scratch,
                           float* c) const {
  const int64_t end = first_panel + panels;
  const bool is_channel_format = weight_.layout().format == PanelFormat::kW8A8Channel;
  for (int64_t step = 0; step < weight_.steps(); step += blocking_.steps) {
    const int64_t next_step = step + blocking_.steps;
    const auto next_panel_to_read = [&](int64_t panel) -> const std::byte* {
      if (panel + 1 < end) return weight_.panel(panel + 1, step);
      if (next_step < weight_.steps()) return weight_.panel(first_panel, next_step);
      return end < weight_.panel_count() ? weight_.panel(end) : nullptr;
    };
    for (int64_t panel = first_panel; panel < end; ++panel) {
      kernel_({.lhs = lhs_.at(first_row, step),
               .lhs_stride = lhs_.stride,
               .tiled_lhs = lhs_.tiled(),
               .panel = weight_.panel(panel, step),
               .next = next_panel_to_read(panel),
               .steps = std::min(blocking_.steps, weight_.steps() - step),
               .rows = static_cast<int>(rows),
               .c = c + (panel - first_panel) * blocking_.rows * kPanelColumns,
               .accumulate = step > 0,
               .scratch = scratch,
               .quant_params = is_channel_format ? lhs_.quant_params + first_row : nullptr,
               .column_scales = is_channel_format ? weight_.column_scales(panel) : nullptr,
               .completes = next_step >= weight_.steps()});
    }
  }
}

}  // namespace millrace::cpu
