#include "sim/simulated_store.h"

#include <algorithm>
#include <utility>

#include "async/event.h"
#include "base/check.h"

namespace millrace::sim {

using cache::PageKey;

SimulatedStoreBackend::Section& SimulatedStoreBackend::section(const cache::StoreIdentity& identity) {
  return sections_.try_emplace(cache::hash_of(identity).hex(), max_pages_ * identity.page_bytes).first->second;
}

/// The store's coroutines own what they use, so that the store may be destroyed before they end.
class SimulatedStore final : public cache::PageStore {
 public:
  SimulatedStore(async::Runtime& runtime, const cache::StoreIdentity& identity,
                 std::shared_ptr<SimulatedStoreBackend> store_backend, SimulatedStoreOptions options)
      : runtime_(runtime),
        page_bytes_(identity.page_bytes),
        options_(std::move(options)),
        state_(std::make_shared<State>(store_backend, store_backend->section(identity))) {}

  asio::awaitable<bool> get(PageKey key, std::span<std::byte> into) override {
    CHECK(into.size() == page_bytes_, "a buffer of {} bytes for a page of {}", into.size(), page_bytes_);
    return finish_get(state_, begin(StoreCall::kGet, page_bytes_), key, into);
  }
  asio::awaitable<bool> put(PageKey key, std::span<const std::byte> page) override {
    CHECK(page.size() == page_bytes_, "{} bytes for a page of {}", page.size(), page_bytes_);
    return finish_put(state_, begin(StoreCall::kPut, page_bytes_), key, page);
  }
  asio::awaitable<bool> exists(PageKey key) override {
    return finish_exists(state_, begin(StoreCall::kExists, 0), key);
  }
  [[nodiscard]] cache::StoreStats stats() const override {
    cache::StoreStats stats = state_->stats;
    stats.bytes_stored = state_->section.index.bytes();
    return stats;
  }

 private:
  struct State {
    State(std::shared_ptr<SimulatedStoreBackend> owner, SimulatedStoreBackend::Section& place)
        : store_backend(std::move(owner)), section(place) {}
    std::shared_ptr<SimulatedStoreBackend> store_backend;
    SimulatedStoreBackend::Section& section;
    cache::StoreStats stats;
  };
  using StatePtr = std::shared_ptr<State>;
  /// An operation under way: when it ends, and whether it succeeds.
  struct Course {
    async::Event done;
    bool fails = false;
  };

  [[nodiscard]] Course begin(StoreCall call, size_t bytes) {
    Course course{async::Event(runtime_)};
    course.fails = options_.fails && options_.fails(call);
    const async::Duration delay = options_.delay ? options_.delay(call, bytes) : async::Duration{};
    runtime_.arm(runtime_.now() + delay, [done = course.done] { done.set(); });
    return course;
  }

  static asio::awaitable<bool> finish_get(StatePtr state, Course course, PageKey key, std::span<std::byte> into) {
    co_await course.done.wait_uncancelled();
    const auto page = state->section.pages.find(key);
    if (course.fails || page == state->section.pages.end()) {
      // After a miss the buffer's content is undefined, so it is overwritten.
      std::fill(into.begin(), into.begin() + static_cast<std::ptrdiff_t>(into.size() / 2), std::byte{0xEE});
      ++state->stats.misses;
      co_return false;
    }
    std::copy(page->second.begin(), page->second.end(), into.begin());
    state->section.index.touch(key, into.size());
    ++state->stats.hits;
    state->stats.bytes_read += into.size();
    co_return true;
  }

  static asio::awaitable<bool> finish_put(StatePtr state, Course course, PageKey key, std::span<const std::byte> page) {
    co_await course.done.wait_uncancelled();
    SimulatedStoreBackend::Section& section = state->section;
    if (course.fails || (!section.pages.contains(key) && !section.index.try_reserve(page.size()))) {
      ++state->stats.refused;
      co_return false;
    }
    if (section.pages.contains(key)) {
      section.index.touch(key, page.size());
      ++state->stats.already_there;
      co_return true;
    }
    while (const auto victim = section.index.take_victim()) {
      section.pages.erase(victim->key);
      ++state->stats.evicted;
    }
    section.index.commit(key, page.size());
    section.pages.emplace(key, std::vector<std::byte>(page.begin(), page.end()));
    ++state->stats.written;
    state->stats.bytes_written += page.size();
    co_return true;
  }

  static asio::awaitable<bool> finish_exists(StatePtr state, Course course, PageKey key) {
    co_await course.done.wait_uncancelled();
    co_return !course.fails && state->section.pages.contains(key);
  }

  async::Runtime& runtime_;
  const size_t page_bytes_;
  const SimulatedStoreOptions options_;
  const StatePtr state_;
};

std::unique_ptr<cache::PageStore> make_simulated_store(async::Runtime& runtime, const cache::StoreIdentity& identity,
                                                       std::shared_ptr<SimulatedStoreBackend> store_backend,
                                                       SimulatedStoreOptions options) {
  return std::make_unique<SimulatedStore>(runtime, identity, std::move(store_backend), std::move(options));
}

}  // namespace millrace::sim
