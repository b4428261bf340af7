#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "cache/page_key.h"

namespace millrace::cache {

/// A copy that the head has asked for; never the same twice in the life of a head.
using CopyId = Id<struct CopyTag, uint64_t>;

enum class CopyKind : uint8_t {
  kLoad,     ///< host page → device page, before the plan's slices run
  kStore,    ///< device page → host page, after the plan's slices have run
  kPersist,  ///< host page → store
  kProbe,    ///< how many of the keys, from the first on, the store has; in a state group: up to the last that it has
  kFetch,    ///< store → host page, from the first key on until one is missing
  kVerify,   ///< no copy: how many of the host pages, from the first on, hold what has been stored or fetched
};
inline constexpr uint8_t kCopyKindCount = 6;

/// Pages that every stage copies between its tiers; the vectors that the kind uses are of equal length.
struct PageCopy {
  CopyId id;
  CopyKind kind = CopyKind::kLoad;
  std::vector<PageId> device;    ///< load and store
  std::vector<HostPageId> host;  ///< all but probe
  std::vector<PageKey> keys;     ///< persist, probe and fetch
  CopyId previous_verify{0};     ///< verify: the one before; a stage that last answered another one has missed some
  uint32_t group = 0;            ///< the cache group whose pages they are

  [[nodiscard]] size_t page_count() const { return kind == CopyKind::kProbe ? keys.size() : host.size(); }
};

/// A copy has ended: its first `done` pages are good, on the stage that says so and on all before it.
struct CopyAck {
  CopyId copy;
  uint32_t done = 0;
  static constexpr size_t kWireBytes = 12;
};

}  // namespace millrace::cache
