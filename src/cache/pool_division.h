#pragma once

#include <algorithm>
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
  bool shares_prefixes = true;   ///< sequences stay cached for others
  uint32_t longest_tokens = 0;   ///< that a sequence may have; 0: unknown
  uint32_t expected_tokens = 0;  ///< length of a typical sequence; 0: unknown
};

/// Pages of a state group that a running sequence has between its plans, and that its next plan needs at most.
inline constexpr uint32_t kRunningStatePages = 2;
/// Cached prefixes are kept up to this multiple of what the running sequences can use.
inline constexpr uint32_t kCachedPerRunning = 8;

/// Returns the number of sequences that run, and that are cached if prefixes are shared, for which memory is of use.
[[nodiscard]] constexpr uint32_t max_sequences(uint32_t max_running, bool shares_prefixes) {
  return static_cast<uint32_t>(
      std::min<uint64_t>(uint64_t{max_running} * (shares_prefixes ? kCachedPerRunning : 1), INT32_MAX));
}

/// Returns the max pages of a window group that a sequence keeps between its plans, drafts apart: those that hold its
/// last `window` - 1 tokens, and the next one's.
[[nodiscard]] uint32_t kept_window_pages(uint32_t window, uint32_t page_size);

/// Returns how many sequences the window groups have room for where the first group has `first_pages`: as many as fill
/// these with the expected tokens. Where their length is unknown, it is the largest of three numbers:
/// - all that run, in at most as much memory as the first group has: then as many sequences of any length run as half
///   of the memory holds with the best division for that length. If none is so long that its pages of the first group
///   weigh as much as the others, as many as fill the first group at the longest;
/// - all that max_sequences() counts, in at most an eighth of the first group's memory;
/// - with shared prefixes, as many as fill the first group with 16384 tokens each, or the longest.
[[nodiscard]] uint64_t expected_sequences(std::span<const WindowSpec> windows, uint64_t first_pages,
                                          const PoolNeeds& needs);

/// Returns the pools of the window groups in a ring whose first group has `first` pages. They have room for
/// `first.sequences`, or expected_sequences(), and in any case for one sequence with the largest micro-batch. A state
/// group has three pages for each sequence. Host pools have as many pages per page of the first group as the device
/// has with expected_sequences().
[[nodiscard]] std::vector<WindowPool> divide_pools(std::span<const WindowSpec> windows, PoolSizes first,
                                                   const PoolNeeds& needs);

}  // namespace millrace::cache
