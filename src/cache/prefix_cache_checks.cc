// What must hold of the account between any two calls; for simulation.
#include <algorithm>
#include <string_view>

#include "base/check.h"
#include "cache/prefix_cache.h"

namespace millrace::cache {
namespace {

/// Where each page of a pool is: in one place, and in one only.
template <class PageIdType>
class Census {
 public:
  explicit Census(size_t page_count) : found_(page_count) {}
  void add(PageIdType page, std::string_view where) {
    CHECK(page.value() < found_.size(), "page {} of a pool of {} is {}", page.value(), found_.size(), where);
    CHECK(found_[page.value()].empty(), "page {} is {} and {}", page.value(), found_[page.value()], where);
    found_[page.value()] = where;
  }
  void add(std::span<const PageIdType> pages, std::string_view where) {
    for (const PageIdType page : pages) add(page, where);
  }
  void end() const {
    for (size_t page = 0; page < found_.size(); ++page) CHECK(!found_[page].empty(), "page {} is lost", page);
  }

 private:
  std::vector<std::string_view> found_;
};

/// A page under another one's key would come back from the store as that one.
void check_keys(const RadixTree& tree, std::span<const PageKey> keys, const PageTable& page_table) {
  for (NodeId node = page_table.node; node != kNoNode && tree.depth(node) > 0; node = tree.parent(node)) {
    CHECK(keys[node.value()] == child_key(keys[tree.parent(node).value()], tree.tokens(node)),
          "node {} at depth {} has the key of another page", node.value(), tree.depth(node));
  }
}

}  // namespace

size_t PrefixCache::wanted_prefetches() const {
  return static_cast<size_t>(std::ranges::count_if(prefetches_, [](const auto& entry) { return entry.second.wanted; }));
}

void PrefixCache::check_invariants(std::span<const PageTable* const> holders) const {
  tree_.check_invariants();
  check_device_pages(holders);
  check_host_pages();
  check_copies();
  for (const PageTable* holder : holders) {
    if (options_.has_store) check_keys(tree_, keys_, *holder);
  }
  const RadixTree::PinCounts keeps = tree_.pin_counts();
  const auto page_table = std::ranges::count_if(holders, [](const auto* holder) { return holder->node != kNoNode; });
  CHECK(keeps.locks == static_cast<size_t>(page_table) + prefetches_.size(), "{} locks of {} holders and {} prefetches",
        keeps.locks, page_table, prefetches_.size());
}

void PrefixCache::check_device_pages(std::span<const PageTable* const> holders) const {
  Census<PageId> census(pool_.page_count());
  census.add(pool_.free_pages(), "free");
  census.add(tree_.device_pages(), "in the tree");
  for (const PageTable* page_table : holders) {
    census.add(std::span(page_table->pages).subspan(page_table->indexed_pages), "with a sequence");
    NodeId node = page_table->node;
    for (size_t i = page_table->indexed_pages; i-- > 0; node = tree_.parent(node)) {
      if (tree_.device_page(node) != page_table->pages[i]) census.add(page_table->pages[i], "beside the tree");
    }
  }
  census.end();
}

void PrefixCache::check_host_pages() const {
  Census<HostPageId> census(host_pool_.page_count());
  census.add(host_pool_.free_pages(), "free");
  census.add(tree_.host_pages(), "in the tree");
  for (const auto& [id, way] : pending_copies_) {
    if (way.copy.kind == CopyKind::kStore || way.copy.kind == CopyKind::kFetch)
      census.add(way.copy.host, "being filled");
  }
  for (const auto& [page, given_up] : persisting_) {
    if (given_up) census.add(page, "on its way to the store");
  }
  census.end();
}

// What is counted and kept for the sake of copies is that of those under way, so that nothing is kept for ever.
void PrefixCache::check_copies() const {
  size_t pinned = to_store_.size();
  size_t storing = to_store_.size();
  size_t writing_back = 0;
  size_t persisting = 0;
  size_t fetching = 0;
  size_t asking = after_fetches_.size();
  size_t verifying = 0;
  for (const auto& [id, way] : pending_copies_) {
    const CopyKind kind = way.copy.kind;
    if (kind == CopyKind::kLoad || kind == CopyKind::kStore) pinned += way.nodes.size();
    if (kind == CopyKind::kStore) storing += way.nodes.size();
    if (way.frees_device) writing_back += way.nodes.size();
    if (kind == CopyKind::kPersist) persisting += way.copy.host.size();
    if (kind == CopyKind::kFetch) fetching += way.copy.host.size();
    if (kind == CopyKind::kFetch || kind == CopyKind::kProbe) ++asking;
    if (kind == CopyKind::kVerify) ++verifying;
  }
  for (const auto& [id, prefetch] : prefetches_) {
    const auto first_page =
        std::span<const TokenId>(prefetch.tokens).first(prefetch.keys.empty() ? 0 : options_.page_size);
    CHECK(prefetch.keys.empty() || prefetch.keys.front() == child_key(keys_[prefetch.anchor.value()], first_page),
          "sequence {} asks the store for other pages than its own", id.value());
  }
  const RadixTree::PinCounts keeps = tree_.pin_counts();
  const auto given_up = std::ranges::count_if(persisting_, [](const auto& entry) { return entry.second; });
  CHECK(keeps.pins == pinned, "{} pins for {} nodes", keeps.pins, pinned);
  CHECK(keeps.host_pins + static_cast<size_t>(given_up) == persisting_.size() && persisting_.size() == persisting,
        "{} pins and {} pages given up, for {} pages on their way to the store, noted {}", keeps.host_pins, given_up,
        persisting, persisting_.size());
  CHECK(storing_.size() == storing && write_back_pages_ == writing_back,
        "{} nodes stored and {} saved, noted {} and {}", storing, writing_back, storing_.size(), write_back_pages_);
  CHECK(prefetch_pages_ == fetching && fetching_.size() == fetching, "{} pages fetched, noted {} and {}", fetching,
        prefetch_pages_, fetching_.size());
  CHECK(prefetches_.size() == asking, "{} prefetches, {} under way", prefetches_.size(), asking);
  CHECK(verifying_ == verifying, "{} questions what is held, noted {}", verifying, verifying_);
}

}  // namespace millrace::cache
