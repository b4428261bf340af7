#include "cpu/blocked_gemm.h"

#include <bit>

#include "base/check.h"

namespace millrace::cpu {
namespace {

constexpr int64_t kVectorRows = 128;
constexpr int64_t kMaxTiledRows = 512;
constexpr int64_t kSharedPanels = BlockedGemm::kMaxPanels;  // a power of two, so that blocks of any GEMM nest
constexpr int64_t kSharedShardedPanels = 4;                 // whose sums take up to four levels

auto select_gemm_kernel(const Device& device, const PanelLayout& layout) {
  const Kernels& kernels = device.kernels;
  switch (layout.format) {
    case PanelFormat::kW8A8: return kernels.gemm_w8a8;
    case PanelFormat::kW8A8Channel: return kernels.gemm_w8a8_channel;
    case PanelFormat::kCodes: return layout.codes.bits != 4 ? kernels.gemm_bytes : kernels.gemm_nibbles;
    case PanelFormat::kW8: return device.bf16_lhs() ? kernels.gemm_w8_bf16 : kernels.gemm_w8_f32;
    case PanelFormat::kFp8: return device.bf16_lhs() ? kernels.gemm_fp8_bf16 : kernels.gemm_fp8_f32;
    case PanelFormat::kF32: return kernels.gemm_f32;
    case PanelFormat::kCompute: break;
  }
  return device.compute_dtype == tensor::DType::kBF16 ? kernels.gemm_bf16 : kernels.gemm_f32;
}

/// Returns whether kernels unpack some of a panel.
bool needs_scratch(PanelFormat format) {
  return format == PanelFormat::kW8 || format == PanelFormat::kFp8 || format == PanelFormat::kCodes;
}

/// Returns the levels of partial sums that exist at once. There is one while the first shard is summed, then one for
/// each subtree that waits for its other half.
int64_t level_count(size_t shards) {
  return std::bit_width(shards);
}

}  // namespace

BlockedGemm::BlockedGemm(const Device& device, const PackedLhs& lhs, int64_t rows, const CpuPackedWeight& weight,
                         bool integer_sums)
    : kernels_(device.kernels),
      weight_(weight),
      kernel_(select_gemm_kernel(device, weight.layout())),
      lhs_(lhs),
      rows_(rows),
      has_column_scales_(weight.has_row_scales() && !integer_sums),
      blocking_(choose_blocking(lhs.tiled(), rows, weight.layout())),
      unpacked_bytes_(needs_scratch(weight.layout().format) ? kW8ScratchBytes : 0),
      row_blocks_((rows + blocking_.rows - 1) / blocking_.rows),
      panel_blocks_((weight.panel_count() + blocking_.panels - 1) / blocking_.panels) {
  CHECK(!integer_sums || weight.has_row_scales(), "integer sums of a weight without row scales");
  CHECK(scratch_bytes() <= kMaxScratchBytes, "a block of {} bytes of scratch", scratch_bytes());
}

size_t BlockedGemm::scratch_bytes() const {
  return static_cast<size_t>(level_count(weight_.layout().shards.size()) * level_floats()) * sizeof(float) +
         unpacked_bytes_;
}

/// Chooses blocks whose LHS rows fit the second-level cache. Tiles multiply faster than memory delivers panels, so as
/// many rows as possible share a panel. When the rows have too many steps to fit, some panels share some of the steps,
/// limited by the room for their sums.
BlockedGemm::Blocking BlockedGemm::choose_blocking(bool tiled, int64_t rows, const PanelLayout& layout) {
  constexpr int64_t kLhsBytes = int64_t{1} << 20;
  const int64_t steps = layout.steps;
  if (!tiled) return {kVectorRows, steps, 1};
  const auto equal_blocks = [&](int64_t most) {
    const int64_t blocks = (rows + most - 1) / most;
    return round_up((rows + blocks - 1) / blocks, 2 * kTileHeight);
  };
  const int64_t fitting = kLhsBytes / (steps * 4) / (2 * kTileHeight) * 2 * kTileHeight;
  if (fitting >= std::min(rows, kMaxTiledRows / 2)) {
    return {equal_blocks(std::min(fitting, kMaxTiledRows)), steps, 1};
  }
  return {equal_blocks(kMaxTiledRows / 2), kLhsBytes / 2 / (kMaxTiledRows / 2) / 4,
          layout.shards.size() > 1 ? kSharedShardedPanels : kSharedPanels};
}

void BlockedGemm::multiply_shard(const Block& block, size_t shard, std::byte* scratch, float* c) const {
  const int first_level = std::popcount(shard);  // the levels below have subtrees that are complete
  const int completed = std::countr_one(shard);  // subtrees of the levels below that end with this shard
  float* const sums = c + first_level * level_floats();
  multiply(block, shard, scratch, sums);
  if (completed == 0) return;
  for (int64_t panel = 0; panel < block.panels; ++panel) {
    const auto level = [&](int index) { return c + index * level_floats() + panel * blocking_.rows * kPanelColumns; };
    const float* partial[4];
    for (int i = 0; i <= completed; ++i) partial[i] = level(first_level - i);
    kernels_.add_partial_sums(partial, completed + 1, block.rows * kPanelColumns, level(first_level - completed));
  }
}

void BlockedGemm::multiply(const Block& block, size_t index, std::byte* scratch, float* c) const {
  const PanelShard& shard = weight_.layout().shards[index];
  const int64_t end = block.first_panel + block.panels;
  const int64_t last_step = shard.first_step + shard.steps;
  const bool is_channel_format = weight_.layout().format == PanelFormat::kW8A8Channel;
  if (shard.steps == 0) std::fill_n(c, level_floats(), 0.0f);
  for (int64_t step = shard.first_step; step < last_step; step += blocking_.steps) {
    const int64_t next_step = std::min(step + blocking_.steps, last_step);
    const auto next_panel_to_read = [&](int64_t panel) -> const std::byte* {
      if (panel + 1 < end) return weight_.panel(panel + 1, step);
      if (next_step < weight_.steps()) return weight_.panel(block.first_panel, next_step);
      return end < weight_.panel_count() ? weight_.panel(end) : nullptr;
    };
    for (int64_t panel = block.first_panel; panel < end; ++panel) {
      kernel_({.lhs = lhs_.at(block.first_row, step),
               .lhs_stride = lhs_.stride,
               .tiled_lhs = lhs_.tiled(),
               .panel = weight_.panel(panel, step),
               .next = next_panel_to_read(panel),
               .steps = next_step - step,
               .rows = static_cast<int>(block.rows),
               .c = c + (panel - block.first_panel) * blocking_.rows * kPanelColumns,
               .accumulate = step > shard.first_step,
               .scratch = scratch,
               .quant_params = is_channel_format
                                   ? lhs_.quant_params + static_cast<int64_t>(index) * rows_ + block.first_row
                                   : nullptr,
               .column_scales = has_column_scales_ ? weight_.column_scales(panel) : nullptr,
               .completes = next_step == last_step,
               .codes = &weight_.layout().codes,
               .group_elements = weight_.layout().group_elements});
    }
  }
}

}  // namespace millrace::cpu
