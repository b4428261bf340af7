#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "base/ids.h"

namespace millrace::cache {

/// Counts of what a PrefixCache has done, in pages since the start; for metrics.
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

/// Counts since the store was opened, except `bytes_stored`.
struct StoreStats {
  uint64_t hits = 0;
  uint64_t misses = 0;   ///< gets that gave nothing, whatever the reason
  uint64_t corrupt = 0;  ///< pages found truncated, too long or altered, and deleted
  uint64_t foreign = 0;  ///< sound pages of another identity, key or version under our name, deleted
  uint64_t refused = 0;  ///< puts that stored nothing, whatever the reason
  uint64_t written = 0;
  uint64_t already_there = 0;  ///< puts of a page that the store had
  uint64_t evicted = 0;
  uint64_t errors = 0;         ///< what the system or the server would not do, besides "there is no such page"
  uint64_t bytes_read = 0;     ///< of hits, without headers
  uint64_t bytes_written = 0;  ///< of written pages, without headers
  uint64_t bytes_stored = 0;   ///< now, of this identity, with headers; 0 where the store cannot know
};

/// One counter of StoreStats: its name in metrics, its field, and its help text.
struct StoreCounter {
  std::string_view name;
  uint64_t StoreStats::* value;
  std::string_view help;
};
inline constexpr std::array<StoreCounter, 12> kStoreCounters = {{
    {"hits_total", &StoreStats::hits, "Pages that a stage's page store gave."},
    {"misses_total", &StoreStats::misses, "Pages asked of a page store that it did not give."},
    {"corrupt_total", &StoreStats::corrupt, "Stored pages found truncated or altered, and deleted."},
    {"foreign_total", &StoreStats::foreign, "Stored pages of another identity, key or version, deleted."},
    {"refused_total", &StoreStats::refused, "Pages that a page store did not take."},
    {"written_total", &StoreStats::written, "Pages that a page store has written."},
    {"already_there_total", &StoreStats::already_there, "Pages given to a page store that had them."},
    {"evicted_total", &StoreStats::evicted, "Stored pages removed to make room."},
    {"errors_total", &StoreStats::errors, "What the system or the server behind a page store would not do."},
    {"read_bytes_total", &StoreStats::bytes_read, "Bytes of the pages that a page store gave."},
    {"written_bytes_total", &StoreStats::bytes_written, "Bytes of the pages that a page store has written."},
    {"stored_bytes", &StoreStats::bytes_stored, "Bytes that a stage's stored pages take, where the store knows."},
}};

/// The counts of one stage's store.
struct StageStoreStats {
  StageId stage;
  StoreStats store;
};

}  // namespace millrace::cache
