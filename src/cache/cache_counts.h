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
  PrefixCacheCounts& operator+=(const PrefixCacheCounts& other);
};

inline PrefixCacheCounts& PrefixCacheCounts::operator+=(const PrefixCacheCounts& other) {
  device_hit_pages += other.device_hit_pages;
  host_hit_pages += other.host_hit_pages;
  missed_pages += other.missed_pages;
  evicted_device_pages += other.evicted_device_pages;
  evicted_host_pages += other.evicted_host_pages;
  stored_pages += other.stored_pages;
  persisted_pages += other.persisted_pages;
  fetched_pages += other.fetched_pages;
  unpersisted_pages += other.unpersisted_pages;
  return *this;
}

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
  StoreStats& operator+=(const StoreStats& other);
};

/// One counter of StoreStats: its name in metrics, its field, and its help text.
struct StoreCounter {
  std::string_view name;
  uint64_t StoreStats::* value;
  std::string_view help;
};
inline constexpr std::array<StoreCounter, 12> kStoreCounters = {{
    {"hits_total", &StoreStats::hits, "Pages read from a stage's page store."},
    {"misses_total", &StoreStats::misses, "Pages that a page store was asked for and did not have."},
    {"corrupt_total", &StoreStats::corrupt, "Stored pages found truncated or altered, and deleted."},
    {"foreign_total", &StoreStats::foreign, "Stored pages of another identity, key or version, deleted."},
    {"refused_total", &StoreStats::refused, "Pages that a page store refused."},
    {"written_total", &StoreStats::written, "Pages written to a page store."},
    {"already_there_total", &StoreStats::already_there, "Pages offered to a page store that already had them."},
    {"evicted_total", &StoreStats::evicted, "Stored pages removed to make room."},
    {"errors_total", &StoreStats::errors, "Operations that the file system or the server of a page store refused."},
    {"read_bytes_total", &StoreStats::bytes_read, "Bytes of pages read from a page store."},
    {"written_bytes_total", &StoreStats::bytes_written, "Bytes of pages written to a page store."},
    {"stored_bytes", &StoreStats::bytes_stored, "Bytes in use in a stage's page store, where the store knows."},
}};

inline StoreStats& StoreStats::operator+=(const StoreStats& other) {
  for (const StoreCounter& counter : kStoreCounters) this->*counter.value += other.*counter.value;
  return *this;
}

/// The counts of one stage's stores of all cache groups.
struct StageStoreStats {
  StageId stage;
  uint32_t rank = 0;  ///< of the stage
  StoreStats store;
};

}  // namespace millrace::cache
