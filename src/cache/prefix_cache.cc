#include "cache/prefix_cache.h"

#include <algorithm>
#include <utility>

namespace millrace::cache {

PrefixCache::PrefixCache(const PrefixCacheOptions& options)
    : options_(options),
      pool_(options.page_count),
      host_pool_(options.host_page_count),
      tree_(options.page_size),
      next_copy_(options.first_copy_id) {
  CHECK(options.share_prefixes || options.host_page_count == 0, "host pages without shared prefixes");
  CHECK(options.host_page_count > 0 || !options.has_store, "a store without host pages");
  if (options.host_page_count > 0) request_verification();
}

RadixTree::Match PrefixCache::match(std::string_view salt, std::span<const TokenId> tokens) const {
  return options_.share_prefixes ? tree_.match(salt, tokens) : RadixTree::Match{};
}

bool PrefixCache::make_room(size_t count) {
  while (pool_.free_count() + write_back_pages_ < count) {
    const NodeId victim = tree_.next_device_victim();
    if (victim == kNoNode) break;
    if (options_.write_policy == WritePolicy::kWriteBack && tree_.host_page(victim) == kNoHostPage) {
      if (write_back(victim, count - pool_.free_count() - write_back_pages_)) continue;
      // What is being saved is colder than this one and will make way for it on the host.
      if (write_back_pages_ > 0) break;
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
bool PrefixCache::write_back(NodeId victim, size_t count) {
  PageCopy copy{.kind = CopyKind::kStore};
  std::vector<NodeId> nodes;
  for (NodeId node = victim; node != kNoNode && nodes.size() < count;) {
    if (tree_.host_page(node) != kNoHostPage) break;
    tree_.pin(node);
    const auto page = allocate_host_page();
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
  write_back_pages_ += nodes.size();
  request_copy(std::move(copy), std::move(nodes), true);
  return true;
}

std::optional<HostPageId> PrefixCache::allocate_host_page() {
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

bool PrefixCache::acquire(PageTable& page_table, std::string_view salt, const RadixTree::Match& match,
                          size_t page_count) {
  CHECK(page_table.node == kNoNode && page_table.pages.empty(), "a holder acquires twice");
  CHECK(page_count >= match.pages, "{} pages for a match of {}", page_count, match.pages);
  if (options_.share_prefixes) {
    page_table.node = match.node == kNoNode ? root_of(salt) : match.node;
    tree_.lock(page_table.node);
  }
  page_table.pages.resize(match.device_pages);
  NodeId node = match.device_node;
  for (size_t i = match.device_pages; i-- > 0; node = tree_.parent(node)) page_table.pages[i] = tree_.device_page(node);
  if (!make_room(page_count - match.device_pages)) {
    if (options_.share_prefixes) tree_.unlock(page_table.node);
    page_table.node = kNoNode;
    page_table.pages.clear();
    return false;
  }
  CHECK(pool_.allocate(page_count - match.device_pages, page_table.pages));
  page_table.indexed_pages = match.pages;
  load(match, std::span(page_table.pages).subspan(match.device_pages, match.pages - match.device_pages));
  counts_.device_hit_pages += match.device_pages;
  counts_.host_hit_pages += match.pages - match.device_pages;
  counts_.missed_pages += page_count - match.pages;
  if (options_.write_policy == WritePolicy::kWriteThroughSelective) {
    for (node = match.node; match.pages > 0 && tree_.depth(node) > 0; node = tree_.parent(node)) {
      if (tree_.use_count(node) > 1) on_page_inserted(node);
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
  request_copy(std::move(copy), std::move(nodes));
}

bool PrefixCache::extend(PageTable& page_table) {
  return make_room(1) && pool_.allocate(1, page_table.pages);
}

void PrefixCache::publish(PageTable& page_table, std::span<const TokenId> tokens) {
  if (!options_.share_prefixes) return;
  const size_t page_size = options_.page_size;
  for (; (page_table.indexed_pages + 1) * page_size <= tokens.size(); ++page_table.indexed_pages) {
    const PageId page = page_table.pages[page_table.indexed_pages];
    const auto page_tokens = tokens.subspan(page_table.indexed_pages * page_size, page_size);
    const size_t nodes_before = tree_.node_count();
    const NodeId next = tree_.insert(page_table.node, page_tokens, page);
    if (tree_.node_count() > nodes_before) set_key(next, page_table, page_tokens);
    tree_.extend_lock(std::exchange(page_table.node, next), next);
    const bool taken = tree_.device_page(next) == page;
    if (taken && options_.write_policy == WritePolicy::kWriteThrough) on_page_inserted(next);
  }
}

void PrefixCache::release(PageTable& page_table) {
  std::vector<PageId> own(page_table.pages.begin() + page_table.indexed_pages, page_table.pages.end());
  NodeId node = page_table.node;
  for (size_t i = page_table.indexed_pages; i-- > 0; node = tree_.parent(node)) {
    if (tree_.device_page(node) != page_table.pages[i]) own.push_back(page_table.pages[i]);
  }
  pool_.release(own);
  if (page_table.node != kNoNode) tree_.unlock(page_table.node);
  page_table = {};
}

size_t PrefixCache::exclusively_held(const PageTable& page_table, const RadixTree::Match& match) const {
  const size_t own = page_table.pages.size() - page_table.indexed_pages;
  return page_table.node == kNoNode ? own : own + tree_.exclusively_locked(page_table.node, match.device_node);
}

bool PrefixCache::copies_pin_pages() const {
  return !to_store_.empty() || std::ranges::any_of(pending_copies_, [](const auto& entry) {
    const CopyKind kind = entry.second.copy.kind;
    return kind == CopyKind::kLoad || kind == CopyKind::kStore;
  });
}

void PrefixCache::clear_tree() {
  std::vector<PageId> device;
  std::vector<HostPageId> host;
  tree_.clear(device, host);
  pool_.release(device);
  host_pool_.release(host);
}

// While the stages are asked what they hold nothing else is under way, and of nothing it does not matter.
bool PrefixCache::flush() {
  const bool copies = has_pending_copies() || has_copies();
  if (tree_.locked() || (copies && !verifying())) return false;
  clear_tree();
  return true;
}

// A host page that the tree knows was filled on all stages before the ring broke, and nothing has been writing to it
// since: only copies whose pages are not in the tree yet write to the host.
void PrefixCache::on_ring_lost() {
  while (!prefetches_.empty()) end_prefetch(prefetches_.begin()->first);
  for (const auto& [id, way] : pending_copies_) {
    if (way.copy.kind == CopyKind::kStore || way.copy.kind == CopyKind::kFetch) host_pool_.release(way.copy.host);
  }
  for (const auto& [page, given_up] : persisting_) {
    if (given_up) host_pool_.release(std::span(&page, 1));
  }
  std::vector<PageId> device;
  std::vector<HostPageId> host;
  tree_.clear_device(device, host);
  host_pool_.release(host);
  pool_ = PagePool(options_.page_count);
  to_store_.clear();
  copies_.clear();
  pending_copies_.clear();
  fetching_.clear();
  after_fetches_.clear();
  storing_.clear();
  persisting_.clear();
  write_back_pages_ = 0;
  prefetch_pages_ = 0;
  verifying_ = 0;
  if (options_.host_page_count > 0) request_verification();
}

}  // namespace millrace::cache
