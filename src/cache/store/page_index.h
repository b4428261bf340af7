#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cache/store/page_store.h"

namespace millrace::cache {

/// A page as a scan of the folder finds it.
struct StoredPage {
  PageKey key;
  uint64_t bytes = 0;   ///< of the file
  int64_t used_ns = 0;  ///< when it was last used, on the wall clock: the file's mtime
};

/// The file store's account of its pages: how many bytes they take, and which was used least recently. It decides
/// what goes when a new page comes; whether a page is there, only the folder knows, since others write there too.
/// Used from any thread; O(log n) per call unless said otherwise.
class PageIndex {
 public:
  explicit PageIndex(uint64_t max_bytes) : max_bytes_(max_bytes) {}

  /// Records that the page is there and was used just now.
  void touch(const PageKey& key, uint64_t bytes);
  /// Records that the page is there and was last used at `page.used_ns`, unless a later use is known.
  void add(const StoredPage& page);
  /// Records that the page is gone.
  void forget(const PageKey& key);
  /// Records that the page was removed at `at_ns`, unless a later use is known.
  void forget(const PageKey& key, int64_t at_ns);
  /// Records that another server writes the page since `page.used_ns`: it counts, but cannot be removed.
  void add_pending(const StoredPage& page);

  /// Makes `bytes` count before they are written, so that concurrent writers together stay within the bound. False when
  /// what is being written takes all of it.
  [[nodiscard]] bool try_reserve(uint64_t bytes);
  void release(uint64_t bytes);
  /// Returns whether what is being written here and elsewhere is within the bound. If not, removing pages does not
  /// help.
  [[nodiscard]] bool has_room() const;
  /// Records that the page was written into what was reserved for it.
  void commit(const PageKey& key, uint64_t bytes);
  /// Returns whether pages and reservations, and `other_bytes` that others left, are within the bound.
  [[nodiscard]] bool fits(uint64_t other_bytes = 0) const;
  /// Takes the page used least recently out of the index when they are not.
  [[nodiscard]] std::optional<StoredPage> take_victim();
  /// Puts a victim back that cannot be removed. It counts, and is taken again when no other victim is left, or after a
  /// use or a scan has found it.
  void set_aside(const StoredPage& page);
  [[nodiscard]] bool has_victims() const;

  /// Returns the pages touched since the last call, for their uses to be written down. O(touched).
  [[nodiscard]] std::vector<StoredPage> take_touched();
  /// Takes over what a scan that began at `begin_ns` has found: pages that others wrote, used or removed. What another
  /// server has been writing for long without a trace is given up. O(n log n).
  void merge(std::span<const StoredPage> found, int64_t begin_ns);

  [[nodiscard]] uint64_t bytes() const { return bytes_; }
  [[nodiscard]] size_t page_count() const;
  /// Returns the wall clock, made strictly increasing, so that no two uses tie.
  [[nodiscard]] int64_t now_ns();

 private:
  struct Entry {
    uint64_t bytes = 0;
    int64_t used_ns = 0;
    bool touched = false;
    bool is_pending = false;  // another server writes it
  };
  using Pages = std::unordered_map<PageKey, Entry>;
  // All with mutex_ held.
  [[nodiscard]] int64_t tick();
  void upsert(const PageKey& key, uint64_t bytes, int64_t used_ns);
  void use_now(const PageKey& key, uint64_t bytes);
  void subtract(uint64_t bytes);
  void remove(Pages::iterator page);

  const uint64_t max_bytes_;
  mutable std::mutex mutex_;
  Pages pages_;
  using UseOrder = std::set<std::pair<int64_t, PageKey>>;
  UseOrder by_use_;     // those that can be removed
  UseOrder set_aside_;  // those that could not be removed
  std::vector<PageKey> touched_;
  std::atomic<uint64_t> bytes_{0};  // written with mutex_ held; a metric must not wait for a merge
  uint64_t pending_bytes_ = 0;      // of bytes_
  uint64_t reserved_ = 0;
  int64_t last_ns_ = 0;
};

}  // namespace millrace::cache
