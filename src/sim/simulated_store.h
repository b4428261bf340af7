#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "cache/store/page_index.h"
#include "cache/store/page_record.h"
#include "cache/store/page_store.h"

namespace millrace::sim {

/// Holds the pages of simulated stores, by identity. Stores with the same backend and equal identities see each other's
/// pages. Shared by its stores, which live in one VirtualWorld and so on one thread.
class SimulatedStoreBackend {
 public:
  /// Bounds the pages of each identity to `max_pages`; the least recently used page is evicted.
  explicit SimulatedStoreBackend(size_t max_pages) : max_pages_(max_pages) {}

 private:
  friend class SimulatedStore;
  struct Section {
    explicit Section(uint64_t max_bytes) : index(max_bytes) {}
    std::map<cache::PageKey, std::vector<std::byte>> pages;
    cache::PageIndex index;
  };
  [[nodiscard]] Section& section(const cache::StoreIdentity& identity);

  const size_t max_pages_;
  std::map<std::string, Section> sections_;
};

enum class StoreCall { kGet, kPut, kExists };

/// Delays and faults of a simulated store. Each function is called when an operation begins; an empty one has no
/// effect. Chance comes from VirtualWorld::random().
struct SimulatedStoreOptions {
  std::function<async::Duration(StoreCall call, size_t bytes)> delay;  ///< `bytes` is 0 for an exists
  std::function<bool(StoreCall call)> fails;                           ///< a miss, a refused put
};

/// Creates a page store in memory under virtual time. It reads or writes a buffer when the operation ends, so that a
/// buffer released too early is noticed.
[[nodiscard]] std::unique_ptr<cache::PageStore> make_simulated_store(
    async::Runtime& runtime, const cache::StoreIdentity& identity, std::shared_ptr<SimulatedStoreBackend> store_backend,
    SimulatedStoreOptions options);

}  // namespace millrace::sim
