#include "cache/prefix_cache.h"

#include <algorithm>
#include <utility>

namespace millrace::cache {

std::optional<WritePolicy> parse_write_policy(std::string_view name) {
  if (name == "write_through") return WritePolicy::kWriteThrough;
  if (name == "write_through_selective") return WritePolicy::kWriteThroughSelective;
  if (name == "write_back") return WritePolicy::kWriteBack;
  return std::nullopt;
}

PrefixCache::PrefixCache(const PrefixCacheOptions& options)
    : options_(options),
      pool_(options.page_count),
      host_pool_(options.host_page_count),
      tree_(options.page_size),
      next_copy_(options.first_copy) {
  CHECK(options.share_prefixes || options.host_page_count == 0, "host pages without shared prefixes");
  CHECK(options.host_page_count > 0 || !options.has_store, "a store without host pages");
  if (options.host_page_count > 0) ask_what_is_held();
}

RadixTree::Match PrefixCache::match(std::string_view salt, std::span<const TokenId> tokens) const {
  return options_.share_prefixes ? tree_.match(salt, tokens) : RadixTree::Match{};
}

bool PrefixCache::make_room(size_t count) {
  while (pool_.free_count() + saving_pages_ < count) {
    const NodeId victim = tree_.next_device_victim();
    if (victim == kNoNode) break;
    if (options_.write_policy == WritePolicy::kWriteBack && tree_.host_page(victim) == kNoHostPage) {
      if (save(victim, count - pool_.free_count() - saving_pages_)) continue;
      // What is being saved is colder than this one and will make way for it on the host.
      if (saving_pages_ > 0) break;
    }
    std::vector<PageId> device;
    std::vector<HostPageId> host;
    tree_.evict_device(1, device, host);
    counts_.evicted_device_pages += device.size();
    counts_.evicted_host_pages += host.size();
    pool_.release(device);
    release_host(host);
  }
  return pool_.free_count() >= count;
}

// A victim, and those above it whose turn comes when it is gone, go to the host first; their device pages can be had
// when all stages have stored them. False when the host has no room.
bool PrefixCache::save(NodeId victim, size_t count) {
  PageCopy copy{.kind = CopyKind::kStore};
  std::vector<NodeId> nodes;
  for (NodeId node = victim; node != kNoNode && nodes.size() < count;) {
    if (tree_.host_page(node) != kNoHostPage) break;
    tree_.pin(node);
    const auto page = take_host_page();
    if (!page) {
      tree_.unpin(node);
      break;
    }
    copy.device.push_back(tree_.device_page(node));
    copy.host.push_back(*page);
    nodes.push_back(node);
    storing_.insert(node);
    node = tree_.device_victim_above(node);
  }
  if (nodes.empty()) return false;
  saving_pages_ += nodes.size();
  ask(std::move(copy), std::move(nodes), true);
  return true;
}

std::optional<HostPageId> PrefixCache::take_host_page() {
  std::vector<HostPageId> pages;
  while (!host_pool_.allocate(1, pages)) {
    tree_.evict_host(1, pages);
    if (pages.empty()) return std::nullopt;
    ++counts_.evicted_host_pages;
    release_host(std::exchange(pages, {}));
  }
  return pages.front();
}

// A page on its way to the store stays as it is until it is there.
void PrefixCache::release_host(std::span<const HostPageId> pages) {
  for (const HostPageId& page : pages) {
    const auto found = persisting_.find(page);
    if (found == persisting_.end()) {
      host_pool_.release({&page, 1});
    } else {
      found->second = true;
    }
  }
}

bool PrefixCache::acquire(PageHolding& holding, std::string_view salt, const RadixTree::Match& match,
                          size_t page_count) {
  CHECK(holding.node == kNoNode && holding.pages.empty(), "a holder acquires twice");
  CHECK(page_count >= match.pages, "{} pages for a match of {}", page_count, match.pages);
  if (options_.share_prefixes) {
    holding.node = match.node == kNoNode ? root_of(salt) : match.node;
    tree_.lock(holding.node);
  }
  holding.pages.resize(match.device_pages);
  NodeId node = match.device_node;
  for (size_t i = match.device_pages; i-- > 0; node = tree_.parent(node)) holding.pages[i] = tree_.device_page(node);
  if (!make_room(page_count - match.device_pages)) {
    if (options_.share_prefixes) tree_.unlock(holding.node);
    holding.node = kNoNode;
    holding.pages.clear();
    return false;
  }
  CHECK(pool_.allocate(page_count - match.device_pages, holding.pages));
  holding.known_pages = match.pages;
  load(match, std::span(holding.pages).subspan(match.device_pages, match.pages - match.device_pages));
  counts_.device_hit_pages += match.device_pages;
  counts_.host_hit_pages += match.pages - match.device_pages;
  counts_.missed_pages += page_count - match.pages;
  if (options_.write_policy == WritePolicy::kWriteThroughSelective) {
    for (node = match.node; match.pages > 0 && tree_.depth(node) > 0; node = tree_.parent(node)) {
      if (tree_.use_count(node) > 1) note_new_page(node);
    }
  }
  return true;
}

// The nodes count as on the device from here on: whoever uses them rides in this plan or a later one, behind the load.
void PrefixCache::load(const RadixTree::Match& match, std::span<const PageId> pages) {
  if (pages.empty()) return;
  std::vector<NodeId> nodes;
  for (NodeId node = match.node; node != match.device_node; node = tree_.parent(node)) nodes.push_back(node);
  std::ranges::reverse(nodes);
  PageCopy copy{.kind = CopyKind::kLoad, .device = {pages.begin(), pages.end()}};
  for (size_t i = 0; i < nodes.size(); ++i) {
    copy.host.push_back(tree_.host_page(nodes[i]));
    tree_.set_device(nodes[i], pages[i]);
    tree_.pin(nodes[i]);
  }
  ask(std::move(copy), std::move(nodes));
}

bool PrefixCache::extend(PageHolding& holding) {
  return make_room(1) && pool_.allocate(1, holding.pages);
}

void PrefixCache::publish(PageHolding& holding, std::span<const TokenId> tokens) {
  if (!options_.share_prefixes) return;
  const size_t page_size = options_.page_size;
  for (; (holding.known_pages + 1) * page_size <= tokens.size(); ++holding.known_pages) {
    const PageId page = holding.pages[holding.known_pages];
    const auto page_tokens = tokens.subspan(holding.known_pages * page_size, page_size);
    const size_t nodes_before = tree_.node_count();
    const NodeId next = tree_.insert(holding.node, page_tokens, page);
    if (tree_.node_count() > nodes_before) set_key(next, holding, page_tokens);
    tree_.extend_lock(std::exchange(holding.node, next), next);
    const bool taken = tree_.device_page(next) == page;
    if (taken && options_.write_policy == WritePolicy::kWriteThrough) note_new_page(next);
  }
}

void PrefixCache::release(PageHolding& holding) {
  std::vector<PageId> own(holding.pages.begin() + holding.known_pages, holding.pages.end());
  NodeId node = holding.node;
  for (size_t i = holding.known_pages; i-- > 0; node = tree_.parent(node)) {
    if (tree_.device_page(node) != holding.pages[i]) own.push_back(holding.pages[i]);
  }
  pool_.release(own);
  if (holding.node != kNoNode) tree_.unlock(holding.node);
  holding = {};
}

size_t PrefixCache::solely_held(const PageHolding& holding, const RadixTree::Match& match) const {
  const size_t own = holding.pages.size() - holding.known_pages;
  return holding.node == kNoNode ? own : own + tree_.solely_locked(holding.node, match.device_node);
}

bool PrefixCache::copies_keep_pages() const {
  return !to_store_.empty() || std::ranges::any_of(under_way_, [](const auto& entry) {
    const CopyKind kind = entry.second.copy.kind;
    return kind == CopyKind::kLoad || kind == CopyKind::kStore;
  });
}

void PrefixCache::forget_everything() {
  std::vector<PageId> device;
  std::vector<HostPageId> host;
  tree_.clear(device, host);
  pool_.release(device);
  host_pool_.release(host);
}

// While the stages are asked what they hold nothing else is under way, and of nothing it does not matter.
bool PrefixCache::flush() {
  const bool copies = copies_under_way() || has_copies();
  if (tree_.locked() || (copies && !verifying())) return false;
  forget_everything();
  return true;
}

// A host page that the tree knows was filled on all stages before the ring broke, and nothing has been writing to it
// since: only copies whose pages are not in the tree yet write to the host.
void PrefixCache::lose_ring() {
  while (!prefetches_.empty()) end_prefetch(prefetches_.begin()->first);
  for (const auto& [id, way] : under_way_) {
    if (way.copy.kind == CopyKind::kStore || way.copy.kind == CopyKind::kFetch) host_pool_.release(way.copy.host);
  }
  for (const auto& [page, given_up] : persisting_) {
    if (given_up) host_pool_.release(std::span(&page, 1));
  }
  std::vector<PageId> device;
  std::vector<HostPageId> host;
  tree_.forget_device(device, host);
  host_pool_.release(host);
  pool_ = PagePool(options_.page_count);
  to_store_.clear();
  copies_.clear();
  under_way_.clear();
  fetching_.clear();
  after_fetches_.clear();
  storing_.clear();
  persisting_.clear();
  saving_pages_ = 0;
  prefetch_pages_ = 0;
  verifying_ = 0;
  if (options_.host_page_count > 0) ask_what_is_held();
}

}  // namespace millrace::cache
