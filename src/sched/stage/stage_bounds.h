#pragma once

#include <cstdint>
#include <vector>

#include "cache/window_pool.h"

namespace millrace::sched {

/// Bounds of every plan: the head plans within them, and stages check them.
struct StageBounds {
  uint32_t slot_count = 0;
  uint32_t page_size = 0;
  uint32_t page_count = 0;  ///< of the first cache group
  uint32_t max_batch_tokens = 0;
  uint32_t vocab_size = 0;
  uint32_t host_page_count = 0;
  uint32_t sampling_vocab = 0;             ///< ids that have logits: those that are sampled and scored
  bool has_output_head = true;             ///< the last stage can sample and score
  std::vector<cache::WindowPool> windows;  ///< of the window groups, which are numbered from 1 on

  /// Returns the pools of a cache group.
  [[nodiscard]] cache::PoolSizes pools(size_t group) const {
    return group == 0 ? cache::PoolSizes{page_count, host_page_count} : windows[group - 1].pages;
  }
  [[nodiscard]] GroupKind kind(size_t group) const { return group == 0 ? GroupKind::kFull : windows[group - 1].kind; }
  [[nodiscard]] size_t group_count() const { return 1 + windows.size(); }
};

}  // namespace millrace::sched
