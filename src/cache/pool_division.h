#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/page_pool.h"
#include "cache/window_pool.h"

namespace millrace::cache {

/// What the sizes of window pools follow from. It is the same on every node of a ring.
struct PoolNeeds {
  uint32_t page_size = 0;
  uint32_t plan_tokens = 0;  ///< rows of the largest micro-batch
  uint32_t max_running = 0;
  uint32_t expected_tokens = 0;  ///< length of a typical sequence
};

/// Pages of a state group that a running sequence has between its plans, and that its next plan needs at most.
inline constexpr uint32_t kRunningStatePages = 2;

/// Returns the max pages of a window group that a sequence keeps between its plans, drafts apart: those that hold its
/// last `window` - 1 tokens, and the next one's.
[[nodiscard]] uint32_t kept_window_pages(uint32_t window, uint32_t page_size);

/// Returns the pools of the window groups in a ring whose first group has `first` pages. A pool holds what the
/// sequences of the expected length need that fill the first group's pool. It also holds what all running sequences
/// keep, within a quarter of the first group's pages, and in any case one sequence with the largest micro-batch. A
/// state group has three pages for each of those expected sequences. If a quarter of the first group's memory holds
/// more, it has that many, at most one for each page of the first group.
[[nodiscard]] std::vector<WindowPool> divide_pools(std::span<const WindowSpec> windows, PoolSizes first,
                                                   const PoolNeeds& needs);

}  // namespace millrace::cache
