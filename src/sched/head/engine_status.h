#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/group_kind.h"
#include "cache/cache_counts.h"
#include "sched/plan/draft_counts.h"

namespace millrace::sched {

/// The pages of one window group at one moment, as EngineStatus has those of the first group.
struct WindowStatus {
  GroupKind kind = GroupKind::kWindow;
  uint32_t window = 0;  ///< tokens that its layers see; 0 for a state group
  uint64_t free_pages = 0;
  uint64_t total_pages = 0;
  uint64_t cached_pages = 0;
  uint64_t host_pages = 0;
  uint64_t cached_host_pages = 0;
};

/// The state of the engine at one moment.
struct EngineStatus {
  bool ready = false;
  bool paused = false;
  std::string reason;    ///< why not ready
  std::string degraded;  ///< while ready: which rings of several take no requests, and why
  uint32_t running = 0;
  uint32_t waiting = 0;
  uint64_t free_pages = 0;  ///< free, or cached and not in use
  uint64_t total_pages = 0;
  uint32_t page_size = 0;     ///< tokens
  uint64_t cached_pages = 0;  ///< on the device, in use or not
  uint64_t host_pages = 0;    ///< of the host tier
  uint64_t cached_host_pages = 0;
  std::vector<WindowStatus> windows;  ///< of the window groups; the pages above are the first group's
  cache::PrefixCacheCounts cache;
  uint64_t preemptions = 0;  ///< running requests sent back to the queue for lack of pages, since the start
  DraftCounts drafts;
};

}  // namespace millrace::sched
