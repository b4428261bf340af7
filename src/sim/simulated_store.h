#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "cache/store/page_index.h"
#include "cache/store/page_record.h"
#include "cache/store/page_store.h"

namespace millrace::sim {

/// The pages of simulated stores, by identity. Stores given the same backend see each other's pages where their
/// identities are equal, and outlive each other; its stores live in one VirtualWorld, and so on one thread.
class SimulatedStoreBackend {
 public:
  /// `max_pages` of each identity; the page used least recently makes room.
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

/// What a simulated store does besides its work. Each is asked when an operation begins; absent, it costs and harms
/// nothing. Chance comes from VirtualWorld::random().
struct SimulatedStoreOptions {
  std::function<async::Duration(StoreCall call, size_t bytes)> delay;  ///< `bytes`: 0 of an exists
  std::function<bool(StoreCall call)> fails;                           ///< a miss, a refused put
};

/// A page store in memory under virtual time. A buffer is read or written when its operation ends, not when it begins,
/// so that giving it up too early shows.
[[nodiscard]] std::unique_ptr<cache::PageStore> make_simulated_store(
    async::Runtime& runtime, const cache::StoreIdentity& identity, std::shared_ptr<SimulatedStoreBackend> store_backend,
    SimulatedStoreOptions options);

}  // namespace millrace::sim
