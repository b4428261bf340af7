#include "cache/prefix_cache_audit.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "base/check.h"

namespace millrace::cache {
namespace {

/// The state of each page of a pool: exactly one.
template <class PageIdType>
class PageCensus {
 public:
  explicit PageCensus(size_t page_count) : found_(page_count) {}
  void add(PageIdType page, std::string_view state) {
    CHECK(page.value() < found_.size(), "page {} of a pool of {} is {}", page.value(), found_.size(), state);
    CHECK(found_[page.value()].empty(), "page {} is {} and {}", page.value(), found_[page.value()], state);
    found_[page.value()] = state;
  }
  void add(std::span<const PageIdType> pages, std::string_view state) {
    for (const PageIdType page : pages) add(page, state);
  }
  void check_complete() const {
    for (size_t page = 0; page < found_.size(); ++page) CHECK(!found_[page].empty(), "page {} is lost", page);
  }

 private:
  std::vector<std::string_view> found_;
};

}  // namespace

void PrefixCacheAudit::check(std::span<const PageTable* const> holders) const {
  parts_.tree.check_invariants();
  check_device_pages(holders);
  check_host_pages();
  check_copies();
  parts_.prefetcher.check_keys();
  for (const PageTable* holder : holders) parts_.keys.check_path(holder->node);
  const auto locking = std::ranges::count_if(holders, [](const auto* holder) { return holder->node != kNoNode; });
  const size_t locks = parts_.tree.pin_counts().locks;
  CHECK(locks == static_cast<size_t>(locking) + parts_.prefetcher.count(), "{} locks of {} holders and {} prefetches",
        locks, locking, parts_.prefetcher.count());
}

void PrefixCacheAudit::check_device_pages(std::span<const PageTable* const> holders) const {
  const RadixTree& tree = parts_.tree;
  PageCensus<PageId> census(parts_.pool.page_count());
  census.add(parts_.pool.free_pages(), "free");
  census.add(tree.device_pages(), "in the tree");
  for (const PageTable* page_table : holders) {
    census.add(std::span(page_table->pages).subspan(page_table->indexed_pages), "with a sequence");
    NodeId node = page_table->node;
    for (size_t i = page_table->indexed_pages; i-- > 0; node = tree.parent(node)) {
      if (tree.device_page(node) != page_table->pages[i]) census.add(page_table->pages[i], "a copy of a known page");
    }
  }
  census.check_complete();
}

void PrefixCacheAudit::check_host_pages() const {
  PageCensus<HostPageId> census(parts_.host.page_count());
  census.add(parts_.host.pool().free_pages(), "free");
  census.add(parts_.tree.host_pages(), "in the tree");
  for (const auto& [id, pending] : parts_.copies.pending()) {
    const CopyKind kind = pending.copy.kind;
    if (kind == CopyKind::kStore || kind == CopyKind::kFetch) census.add(pending.copy.host, "being filled");
  }
  census.add(parts_.host.persisted_only(), "on its way to the store");
  census.check_complete();
}

void PrefixCacheAudit::check_copies() const {
  const HostWriter& writer = parts_.writer;
  const Prefetcher& prefetcher = parts_.prefetcher;
  size_t pinned = writer.noted_pages();
  size_t storing = writer.noted_pages();
  size_t writing_back = 0;
  size_t persisting = 0;
  size_t fetching = 0;
  size_t asking = prefetcher.waiting_count();
  std::array<size_t, kCopyKindCount> by_kind{};
  for (const auto& [id, pending] : parts_.copies.pending()) {
    const CopyKind kind = pending.copy.kind;
    ++by_kind[static_cast<size_t>(kind)];
    if (kind == CopyKind::kLoad || kind == CopyKind::kStore) pinned += pending.nodes.size();
    if (kind == CopyKind::kStore) storing += pending.nodes.size();
    if (pending.frees_device) writing_back += pending.nodes.size();
    if (kind == CopyKind::kPersist) persisting += pending.copy.host.size();
    if (kind == CopyKind::kFetch) fetching += pending.copy.host.size();
    if (kind == CopyKind::kFetch || kind == CopyKind::kProbe) ++asking;
  }
  for (size_t kind = 0; kind < by_kind.size(); ++kind) {
    const size_t counted = parts_.copies.pending_count(static_cast<CopyKind>(kind));
    CHECK(by_kind[kind] == counted, "{} copies of kind {} under way, counted {}", by_kind[kind], kind, counted);
  }
  const RadixTree::PinCounts kept = parts_.tree.pin_counts();
  const size_t given_up = parts_.host.persisted_only().size();
  const size_t persisted = parts_.host.persisting_count();
  CHECK(kept.pins == pinned, "{} pins for {} nodes", kept.pins, pinned);
  CHECK(kept.host_pins + given_up == persisted && persisted == persisting,
        "{} pins and {} pages given up, for {} pages on their way to the store, noted {}", kept.host_pins, given_up,
        persisting, persisted);
  CHECK(writer.storing_pages() == storing && writer.write_back_pages() == writing_back,
        "{} nodes stored and {} saved, noted {} and {}", storing, writing_back, writer.storing_pages(),
        writer.write_back_pages());
  CHECK(prefetcher.filled_pages() == fetching && prefetcher.fetched_keys() == fetching,
        "{} pages fetched, noted {} and {}", fetching, prefetcher.filled_pages(), prefetcher.fetched_keys());
  CHECK(prefetcher.count() == asking, "{} prefetches, {} under way", prefetcher.count(), asking);
}

}  // namespace millrace::cache
