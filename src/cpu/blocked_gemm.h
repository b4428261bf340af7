#pragma once

#include <algorithm>

#include "cpu/packed_lhs.h"

namespace millrace::cpu {

/// The sums of some rows for one panel, passed to an epilogue.
struct PanelResult {
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t feature = 0;   ///< output feature of the first column
  int64_t features = 0;  ///< features in this panel, at most 64
  float* c = nullptr;    ///< [rows, 64]; the epilogue may overwrite it

  [[nodiscard]] float* row(int64_t index) const { return c + index * kPanelColumns; }
};

/// A GEMM of an LHS with a packed weight, cut into blocks that any threads compute in any order. The sums of the
/// weight's shards are added in a binary tree. The bits of a sum do not depend on the cuts. It computes the features of
/// the weight's own layout, without its rest(). A view of both operands; lives on the stack of an op.
class BlockedGemm {
 public:
  /// `integer_sums`: the sums of channel panels stay integers, which PanelResult::c holds.
  BlockedGemm(const Device& device, const PackedLhs& lhs, int64_t rows, const CpuPackedWeight& weight,
              bool integer_sums = false);

  /// Returns the number of blocks. Blocks are numbered by row block first, then by panel block.
  [[nodiscard]] int64_t block_count() const { return row_blocks_ * panel_blocks_; }
  [[nodiscard]] int64_t row_blocks() const { return row_blocks_; }
  [[nodiscard]] int64_t panel_blocks() const { return panel_blocks_; }
  /// Returns the panels per block.
  [[nodiscard]] int64_t panels() const { return blocking_.panels; }
  /// Returns the bytes of scratch that run() needs, 64-byte aligned.
  [[nodiscard]] size_t scratch_bytes() const;
  /// The maximum of panels() over all GEMMs.
  static constexpr int64_t kMaxPanels = 8;
  /// The maximum of scratch_bytes() over all GEMMs.
  static constexpr size_t kMaxScratchBytes = (size_t{1} << 20) + kW8ScratchBytes;

  /// Computes a block and passes the sums of each of its panels to finish(PanelResult).
  template <class Epilogue>
  void run(int64_t block, std::byte* scratch, const Epilogue& finish) const {
    auto* const c = reinterpret_cast<float*>(scratch + unpacked_bytes_);  // [levels, panels, rows of the block, 64]
    const int64_t first_row = block / panel_blocks_ * blocking_.rows;
    const int64_t rows = std::min(rows_ - first_row, blocking_.rows);
    const int64_t first_panel = block % panel_blocks_ * blocking_.panels;
    const int64_t panels = std::min(blocking_.panels, weight_.panel_count() - first_panel);
    const Block extent{.first_row = first_row, .rows = rows, .first_panel = first_panel, .panels = panels};
    for (size_t shard = 0; shard < weight_.layout().shards.size(); ++shard) multiply_shard(extent, shard, scratch, c);
    for (int64_t panel = first_panel; panel < first_panel + panels; ++panel) {
      const int64_t feature = panel * weight_.panel_features();
      const int64_t features = std::min(weight_.panel_features(), weight_.own_features() - feature);
      finish(PanelResult{.first_row = first_row,
                         .rows = rows,
                         .feature = feature,
                         .features = features,
                         .c = c + (panel - first_panel) * blocking_.rows * kPanelColumns});
    }
  }

 private:
  /// A block: `rows` rows pass over `steps` steps of each of `panels` panels in turn.
  struct Blocking {
    int64_t rows = 0;
    int64_t steps = 0;
    int64_t panels = 1;
  };
  static Blocking choose_blocking(bool tiled, int64_t rows, const PanelLayout& layout);
  struct Block {
    int64_t first_row = 0;
    int64_t rows = 0;
    int64_t first_panel = 0;
    int64_t panels = 0;
  };
  /// Multiplies a shard and adds all subtrees of the sum that it completes. The first level of c has the sum of the
  /// tree after the last shard.
  void multiply_shard(const Block& block, size_t shard, std::byte* scratch, float* c) const;
  void multiply(const Block& block, size_t shard, std::byte* scratch, float* c) const;
  /// Returns the floats of a level of c.
  [[nodiscard]] int64_t level_floats() const { return blocking_.panels * blocking_.rows * kPanelColumns; }

  const Kernels& kernels_;
  const CpuPackedWeight& weight_;
  void (*kernel_)(const GemmTask&);
  PackedLhs lhs_;
  int64_t rows_;
  bool has_column_scales_;
  Blocking blocking_;
  size_t unpacked_bytes_;  // of scratch for the weights
  int64_t row_blocks_;
  int64_t panel_blocks_;
};

}  // namespace millrace::cpu
