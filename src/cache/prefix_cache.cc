#include "cache/prefix_cache.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "cache/prefix_cache_audit.h"

namespace millrace::cache {

PrefixCache::PrefixCache(const PrefixCacheOptions& options)
    : options_(options),
      pool_(options.page_count),
      tree_(options.page_size),
      keys_(tree_, options.page_size, options.has_store),
      host_(options.host_page_count, tree_, counts_),
      copies_(options.first_copy_id),
      writer_(tree_, host_, copies_, counts_),
      persister_(tree_, keys_, host_, copies_, counts_),
      prefetcher_(tree_, keys_, host_, copies_, counts_, options.page_size) {
  check_options();
  if (options.host_page_count > 0) request_verification();
}

void PrefixCache::check_options() const {
  CHECK(options_.share_prefixes || options_.host_page_count == 0, "host pages without shared prefixes");
  CHECK(options_.host_page_count > 0 || !options_.has_store, "a store without host pages");
}

RadixTree::Match PrefixCache::match(std::string_view salt, std::span<const TokenId> tokens) const {
  return options_.share_prefixes ? tree_.match(salt, tokens) : RadixTree::Match{};
}

bool PrefixCache::make_room(size_t count) {
  while (pool_.free_count() + writer_.write_back_pages() < count) {
    const NodeId victim = tree_.next_device_victim();
    if (victim == kNoNode) break;
    if (options_.write_policy == WritePolicy::kWriteBack && tree_.host_page(victim) == kNoHostPage) {
      if (writer_.write_back(victim, count - pool_.free_count() - writer_.write_back_pages())) continue;
      // What is being saved is colder than this one and will make way for it on the host.
      if (writing_back()) break;
    }
    std::vector<PageId> device;
    std::vector<HostPageId> host;
    tree_.evict_device(1, device, host);
    counts_.evicted_device_pages += device.size();
    counts_.evicted_host_pages += host.size();
    pool_.release(device);
    host_.release(host);
  }
  return pool_.free_count() >= count;
}

bool PrefixCache::acquire(PageTable& page_table, std::string_view salt, const RadixTree::Match& match,
                          size_t page_count) {
  CHECK(page_table.node == kNoNode && page_table.pages.empty(), "a holder acquires twice");
  CHECK(page_count >= match.pages, "{} pages for a match of {}", page_count, match.pages);
  if (options_.share_prefixes) {
    page_table.node = match.node == kNoNode ? keys_.root(salt) : match.node;
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
      if (tree_.use_count(node) > 1) writer_.note(node);
    }
  }
  return true;
}

// The nodes count as on the device from here on: a sequence that uses them is in this plan or a later one, after the
// load.
void PrefixCache::load(const RadixTree::Match& match, std::span<const PageId> pages) {
  if (pages.empty()) return;
  PendingCopy request{.copy = {.kind = CopyKind::kLoad, .device = {pages.begin(), pages.end()}}};
  for (NodeId node = match.node; node != match.device_node; node = tree_.parent(node)) request.nodes.push_back(node);
  std::ranges::reverse(request.nodes);
  for (size_t i = 0; i < pages.size(); ++i) {
    const NodeId node = request.nodes[i];
    request.copy.host.push_back(tree_.host_page(node));
    tree_.set_device(node, pages[i]);
    tree_.pin(node);
  }
  copies_.request(std::move(request));
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
    if (tree_.node_count() > nodes_before) keys_.set_computed(next, page_table, page_tokens);
    tree_.extend_lock(std::exchange(page_table.node, next), next);
    const bool taken = tree_.device_page(next) == page;
    if (taken && options_.write_policy == WritePolicy::kWriteThrough) writer_.note(next);
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

void PrefixCache::prefetch(SequenceId id, std::string_view salt, std::span<const TokenId> tokens,
                           PageTable& page_table) {
  if (options_.has_store) prefetcher_.start(id, salt, tokens, page_table);
}

bool PrefixCache::copies_pin_pages() const {
  return writer_.noted_pages() + copies_.pending_count(CopyKind::kLoad) + copies_.pending_count(CopyKind::kStore) > 0;
}

std::vector<PageCopy> PrefixCache::take_copies() {
  writer_.request_noted();
  return copies_.take();
}

Result<void> PrefixCache::acknowledge(const CopyAck& ack) {
  const auto ended = copies_.acknowledge(ack);
  if (!ended) return ended.error();
  finish(*ended);
  return {};
}

void PrefixCache::finish(const PendingCopy& ended) {
  switch (ended.copy.kind) {
    case CopyKind::kLoad:
      for (const NodeId node : ended.nodes) tree_.unpin(node);
      break;
    case CopyKind::kStore: {
      for (const NodeId node : ended.nodes) tree_.unpin(node);
      const std::vector<NodeId> stored = writer_.finish(ended);
      if (options_.has_store) persister_.request(stored);
      break;
    }
    case CopyKind::kPersist: persister_.finish(ended); break;
    case CopyKind::kProbe: prefetcher_.finish_probe(ended); break;
    case CopyKind::kFetch: prefetcher_.finish_fetch(ended); break;
    case CopyKind::kVerify:
      // A stage that was started anew holds nothing, and then the others hold their pages for nothing.
      if (ended.done < ended.copy.page_count()) clear_tree();
      break;
  }
}

// Asked also when nothing is known: who answers the next time must have been there from now on.
void PrefixCache::request_verification() {
  const std::vector<HostPageId> pages = tree_.host_pages();
  std::span<const HostPageId> left(pages);
  do {
    const auto part = left.first(std::min(left.size(), CopyTracker::kPagesPerPlan));
    copies_.request({.copy = {.kind = CopyKind::kVerify, .host = {part.begin(), part.end()}}});
    left = left.subspan(part.size());
  } while (!left.empty());
}

void PrefixCache::clear_tree() {
  std::vector<PageId> device;
  std::vector<HostPageId> host;
  tree_.clear(device, host);
  pool_.release(device);
  host_.release(host);
}

// While the stages verify what they hold, nothing else is under way, and a verification outlives the tree.
bool PrefixCache::flush() {
  const bool copies = has_pending_copies() || has_copies();
  if (tree_.locked() || (copies && !verifying())) return false;
  clear_tree();
  return true;
}

// A host page that the tree knows was filled on all stages before the ring broke, and nothing has been writing to it
// since: only copies whose pages are not in the tree yet write to the host.
void PrefixCache::on_ring_lost() {
  prefetcher_.clear();
  for (const auto& [id, pending] : copies_.pending()) {
    const CopyKind kind = pending.copy.kind;
    if (kind == CopyKind::kStore || kind == CopyKind::kFetch) host_.release(pending.copy.host);
  }
  host_.abandon_persists();
  std::vector<PageId> device;
  std::vector<HostPageId> host;
  tree_.clear_device(device, host);
  host_.release(host);
  pool_ = PagePool(options_.page_count);
  writer_.clear();
  copies_.clear();
  if (options_.host_page_count > 0) request_verification();
}

// Copies that were to verify the former host pages are forgotten: the new ones are asked for instead.
void PrefixCache::resize(PoolSizes pages) {
  clear_tree();
  CHECK(pool_.free_count() == pool_.page_count(), "the pools are resized while {} of {} pages are free",
        pool_.free_count(), pool_.page_count());
  copies_.clear();
  options_.page_count = pages.device;
  options_.host_page_count = pages.host;
  check_options();
  pool_ = PagePool(pages.device);
  host_.resize(pages.host);
  if (pages.host > 0) request_verification();
}

void PrefixCache::check_invariants(std::span<const PageTable* const> holders) const {
  const PrefixCacheAudit audit({.pool = pool_,
                                .tree = tree_,
                                .keys = keys_,
                                .host = host_,
                                .copies = copies_,
                                .writer = writer_,
                                .prefetcher = prefetcher_});
  audit.check(holders);
}

}  // namespace millrace::cache
