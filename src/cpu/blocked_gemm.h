#pragma once

#include <algorithm>

#include "cpu/packed_lhs.h"

namespace millrace::cpu {

/// The sums of some rows with one panel.
struct PanelResult {
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t feature = 0;   ///< of the first column
  int64_t features = 0;  ///< that the panel has
  float* c = nullptr;    ///< [rows, 64], may be written to

  [[nodiscard]] float* row(int64_t index) const { return c + index * kPanelColumns; }
};

/// A product of LHS rows with a packed weight, cut into blocks that any threads compute in any order: the bits of a
/// sum do not depend on where it was cut. A view of both; lives on the stack of an op.
class BlockedGemm {
 public:
  BlockedGemm(const Device& device, const PackedLhs& lhs, int64_t rows, const CpuPackedWeight& weight);

  /// Blocks of rows, each of all blocks of panels one after another.
  [[nodiscard]] int64_t block_count() const { return row_blocks_ * panel_blocks_; }
  [[nodiscard]] int64_t row_blocks() const { return row_blocks_; }
  [[nodiscard]] int64_t panel_blocks() const { return panel_blocks_; }
  /// Panels of a block.
  [[nodiscard]] int64_t panels() const { return blocking_.panels; }
  /// Of run(): 64-byte aligned, and of any product at most.
  [[nodiscard]] size_t scratch_bytes() const;
  static constexpr size_t kMaxScratchBytes = (size_t{1} << 19) + kW8ScratchBytes;

  /// Computes a block and hands the sums of each of its panels to finish(PanelResult).
  template <class Epilogue>
  void run(int64_t block, std::byte* scratch, const Epilogue& finish) const {
    auto* const c = reinterpret_cast<float*>(scratch + w8_bytes_);  // [panels, rows of the block, 64]
    const int64_t first_row = block / panel_blocks_ * blocking_.rows;
    const int64_t rows = std::min(rows_ - first_row, blocking_.rows);
    const int64_t first_panel = block % panel_blocks_ * blocking_.panels;
    const int64_t panels = std::min(blocking_.panels, weight_.panel_count() - first_panel);
    multiply(first_row, rows, first_panel, panels, scratch, c);
    for (int64_t panel = first_panel; panel < first_panel + panels; ++panel) {
      const int64_t feature = panel * weight_.panel_features();
      const int64_t features = std::min(weight_.panel_features(), weight_.out_features() - feature);
      finish(
          PanelResult{first_row, rows, feature, features, c + (panel - first_panel) * blocking_.rows * kPanelColumns});
    }
  }

 private:
  /// `rows` pass over `steps` of `panels` panels one after another.
  struct Blocking {
    int64_t rows = 0;
    int64_t steps = 0;
    int64_t panels = 1;
  };
  static Blocking choose_blocking(bool tiled, int64_t rows, int64_t steps);
  void multiply(int64_t first_row, int64_t rows, int64_t first_panel, int64_t panels, std::byte* scratch,
                float* c) const;

  const CpuPackedWeight& weight_;
  void (*kernel_)(const GemmTask&);
  PackedLhs lhs_;
  int64_t rows_;
  Blocking blocking_;
  size_t w8_bytes_;
  int64_t row_blocks_;
  int64_t panel_blocks_;
};

}  // namespace millrace::cpu
