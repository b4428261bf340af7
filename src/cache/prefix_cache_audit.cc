#include "cache/prefix_cache_audit.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_set>
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
  check_host_pages(parts_.first, parts_.tree.host_pages());
  for (size_t i = 0; i < parts_.windows.size(); ++i) check_window(i, holders);
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
  PageCensus<PageId> census(parts_.first.pool().page_count());
  census.add(parts_.first.pool().free_pages(), "free");
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

void PrefixCacheAudit::check_window(size_t index, std::span<const PageTable* const> holders) const {
  const WindowGroup& group = *parts_.windows[index];
  group.pages().check_invariants();
  PageCensus<PageId> census(group.account().pool().page_count());
  census.add(group.account().pool().free_pages(), "free");
  census.add(group.pages().device_pages(), "in the tree");
  size_t claims = 0;
  for (const PageTable* page_table : holders) {
    if (page_table->windows.empty()) continue;
    for (const WindowTable::Entry& one : page_table->windows[index].entries) {
      if (one.page == kNoPage) {
        CHECK(group.has_states() && one.node == kNoNode, "a table of group {} has a hole", index + 1);
        continue;
      }
      if (one.node == kNoNode) {
        census.add(one.page, "with a sequence");
        continue;
      }
      ++claims;
      CHECK(group.pages().device_page(one.node) == one.page, "page {} is claimed and not node {}'s", one.page.value(),
            one.node.value());
    }
  }
  census.check_complete();
  CHECK(claims == group.pages().counts().claims, "{} claims, noted {}", claims, group.pages().counts().claims);
  check_host_pages(group.account(), group.pages().host_pages());
}

void PrefixCacheAudit::check_host_pages(const GroupAccount& account, std::span<const HostPageId> known) const {
  PageCensus<HostPageId> census(account.host().page_count());
  census.add(account.host().pool().free_pages(), "free");
  census.add(known, "in the tree");
  for (const auto& [id, pending] : parts_.copies.pending()) {
    const CopyKind kind = pending.copy.kind;
    const bool fills = kind == CopyKind::kStore || kind == CopyKind::kFetch;
    if (fills && pending.copy.group == account.group()) census.add(pending.copy.host, "being filled");
  }
  census.add(parts_.prefetcher.arrived_pages(account.group()), "fetched");
  census.add(account.host().persisted_only(), "on its way to the store");
  census.check_complete();
}

void PrefixCacheAudit::check_group_copies(const GroupAccount& account, const Kept& kept) const {
  const HostWriter& writer = account.writer();
  size_t pinned = writer.noted_pages();
  size_t storing = writer.noted_pages();
  size_t writing_back = 0;
  size_t persisting = 0;
  for (const auto& [id, pending] : parts_.copies.pending()) {
    const CopyKind kind = pending.copy.kind;
    if (pending.copy.group != account.group()) continue;
    if (kind == CopyKind::kLoad || kind == CopyKind::kStore) pinned += pending.nodes.size();
    if (kind == CopyKind::kStore) storing += pending.nodes.size();
    if (pending.frees_device) writing_back += pending.nodes.size();
    if (kind == CopyKind::kPersist) persisting += pending.copy.host.size();
  }
  const size_t given_up = account.host().persisted_only().size();
  const size_t persisted = account.host().persisting_count();
  CHECK(kept.pins == pinned, "{} pins for {} nodes", kept.pins, pinned);
  CHECK(kept.host_pins + given_up == persisted && persisted == persisting,
        "{} pins and {} pages given up, for {} pages on their way to the store, noted {}", kept.host_pins, given_up,
        persisting, persisted);
  CHECK(writer.storing_pages() == storing && writer.write_back_pages() == writing_back,
        "{} nodes stored and {} saved, noted {} and {}", storing, writing_back, writer.storing_pages(),
        writer.write_back_pages());
}

void PrefixCacheAudit::check_copies() const {
  const Prefetcher& prefetcher = parts_.prefetcher;
  size_t fetching = 0;
  size_t asking = prefetcher.waiting_count();
  std::array<size_t, kCopyKindCount> by_kind{};
  std::unordered_set<SequenceId> requests;
  for (const auto& [id, pending] : parts_.copies.pending()) {
    const CopyKind kind = pending.copy.kind;
    ++by_kind[static_cast<size_t>(kind)];
    if (kind == CopyKind::kFetch && pending.copy.group == 0) fetching += pending.copy.host.size();
    if (kind == CopyKind::kFetch || kind == CopyKind::kProbe) requests.insert(pending.request);
  }
  asking += requests.size();
  for (size_t kind = 0; kind < by_kind.size(); ++kind) {
    const size_t counted = parts_.copies.pending_count(static_cast<CopyKind>(kind));
    CHECK(by_kind[kind] == counted, "{} copies of kind {} under way, counted {}", by_kind[kind], kind, counted);
  }
  RadixTree::PinCounts kept = parts_.tree.pin_counts();
  // A pin of a window page pins its node as well.
  for (const auto& group : parts_.windows) {
    const WindowPages::Counts counts = group->pages().counts();
    CHECK(kept.pins >= counts.pins, "{} pins in a window group, {} in the tree", counts.pins, kept.pins);
    kept.pins -= counts.pins;
    check_group_copies(group->account(), {.pins = counts.pins, .host_pins = counts.host_pins});
  }
  check_group_copies(parts_.first, {.pins = kept.pins, .host_pins = kept.host_pins});
  const size_t arrived = parts_.prefetcher.arrived_pages(0).size();
  CHECK(prefetcher.filled_pages() == fetching && prefetcher.fetched_keys() == fetching + arrived,
        "{} pages fetched and {} arrived, noted {} and {}", fetching, arrived, prefetcher.filled_pages(),
        prefetcher.fetched_keys());
  CHECK(prefetcher.count() == asking, "{} prefetches, {} under way", prefetcher.count(), asking);
}

}  // namespace millrace::cache
