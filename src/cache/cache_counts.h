#pragma once

#include <cstdint>

namespace millrace::cache {

/// What a PrefixCache has done, in pages since the start; for metrics.
struct PrefixCacheCounts {
  uint64_t device_hit_pages = 0;
  uint64_t host_hit_pages = 0;  ///< loaded back for a sequence
  uint64_t missed_pages = 0;    ///< computed by admitted sequences' prompts
  uint64_t evicted_device_pages = 0;
  uint64_t evicted_host_pages = 0;
  uint64_t stored_pages = 0;       ///< device → host
  uint64_t persisted_pages = 0;    ///< host → store, good on all stages
  uint64_t fetched_pages = 0;      ///< store → host, good on all stages
  uint64_t unpersisted_pages = 0;  ///< not asked of the store, which is behind
};

}  // namespace millrace::cache
