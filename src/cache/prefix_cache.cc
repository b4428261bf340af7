#include "cache/prefix_cache.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "cache/prefix_cache_audit.h"

namespace millrace::cache {
namespace {

std::vector<std::unique_ptr<WindowGroup>> make_windows(const PrefixCacheOptions& options, RadixTree& tree,
                                                       const NodeKeys& keys, CopyTracker& copies) {
  std::vector<std::unique_ptr<WindowGroup>> groups;
  for (const WindowPool& window : options.windows) {
    const WindowGroup::Options made{.group = static_cast<uint32_t>(groups.size() + 1),
                                    .window = window.window,
                                    .page_size = options.page_size,
                                    .sizes = window.pages,
                                    .write_policy = options.write_policy,
                                    .kind = window.kind,
                                    .takes_snapshots = options.share_prefixes,
                                    .snapshot_pages = options.snapshot_pages};
    groups.push_back(std::make_unique<WindowGroup>(made, tree, keys, copies));
  }
  return groups;
}

}  // namespace

PrefixCache::PrefixCache(const PrefixCacheOptions& options)
    : options_(options),
      tree_(options.page_size),
      keys_(tree_, options.page_size, options.has_store),
      copies_(options.first_copy_id),
      first_(0, {.device = options.page_count, .host = options.host_page_count}, options.write_policy, tree_, keys_,
             copies_),
      windows_(make_windows(options, tree_, keys_, copies_)),
      prefetcher_(tree_, keys_, first_.host(), copies_, first_.counts(), options.page_size, windows_) {
  check_options();
  if (!windows_.empty()) tree_.set_listener(this);
  if (options.host_page_count > 0) request_verification();
}

void PrefixCache::check_options() const {
  CHECK(options_.share_prefixes || options_.host_page_count == 0, "host pages without shared prefixes");
  CHECK(options_.host_page_count > 0 || !options_.has_store, "a store without host pages");
  for (const WindowPool& one : options_.windows) {
    CHECK(one.window > 0 && (one.pages.host > 0) == (options_.host_page_count > 0), "a window of {} with {} host pages",
          one.window, one.pages.host);
    CHECK(one.kind != GroupKind::kState || &one == &options_.windows.back(), "a state group before another group");
  }
}

uint64_t PrefixCache::version() const {
  uint64_t version = tree_.version();
  for (const auto& group : windows_) version += group->pages().version();
  return version;
}

bool PrefixCache::writing_back() const {
  const auto has_some = [](const auto& group) { return group->account().writer().write_back_pages() > 0; };
  return first_.writer().write_back_pages() > 0 || std::ranges::any_of(windows_, has_some);
}

size_t PrefixCache::noted_pages() const {
  size_t count = first_.writer().noted_pages();
  for (const auto& group : windows_) count += group->account().writer().noted_pages();
  return count;
}

void PrefixCache::on_off_device(NodeId node) {
  for (const auto& group : windows_) group->on_off_device(node);
}

void PrefixCache::on_removed(NodeId node) {
  for (const auto& group : windows_) group->on_removed(node);
}

RadixTree::Match PrefixCache::match(std::string_view salt, std::span<const TokenId> tokens) const {
  if (!options_.share_prefixes) return {};
  const RadixTree::Match match = tree_.match(salt, tokens);
  return windows_.empty() ? match : restricted(match);
}

/// Returns the part of a match at whose end every window group has what the next token sees. O(pages of the match).
RadixTree::Match PrefixCache::restricted(RadixTree::Match match) const {
  const uint32_t all_pages = match.pages;
  NodeId end = match.node;  // the deepest that no page examined so far rules out
  uint32_t end_pages = match.pages;
  NodeId node = match.node;
  for (uint32_t pages = match.pages; pages > 0; --pages, node = tree_.parent(node)) {
    bool is_seen = false;
    bool is_missing = false;
    for (const auto& group : windows_) {
      if (pages <= group->first_page(size_t{end_pages} * options_.page_size)) continue;
      is_seen = true;
      is_missing |= !group->pages().known(node);
    }
    if (!is_seen) break;
    if (!is_missing) continue;
    end = tree_.parent(node);
    end_pages = pages - 1;
  }
  match.node = end;
  match.pages = end_pages;
  if (end_pages < all_pages) match.branch_pages = all_pages;
  if (match.device_pages <= end_pages) return match;
  match.device_node = end;
  match.device_pages = end_pages;
  return match;
}

bool PrefixCache::acquire(PageTable& page_table, std::string_view salt, const RadixTree::Match& match,
                          size_t page_count, size_t window_pages) {
  CHECK(page_table.node == kNoNode && page_table.pages.empty(), "a holder acquires twice");
  CHECK(page_count >= match.pages, "{} pages for a match of {}", page_count, match.pages);
  if (options_.share_prefixes) {
    page_table.node = match.node == kNoNode ? keys_.root(salt) : match.node;
    tree_.lock(page_table.node);
  }
  page_table.pages.resize(match.device_pages);
  NodeId node = match.device_node;
  for (size_t i = match.device_pages; i-- > 0; node = tree_.parent(node)) page_table.pages[i] = tree_.device_page(node);
  if (!first_.make_room(page_count - match.device_pages) || !acquire_windows(page_table, match, window_pages)) {
    if (options_.share_prefixes) tree_.unlock(page_table.node);
    page_table.node = kNoNode;
    page_table.pages.clear();
    return false;
  }
  CHECK(first_.pool().allocate(page_count - match.device_pages, page_table.pages));
  page_table.indexed_pages = match.pages;
  load(match, std::span(page_table.pages).subspan(match.device_pages, match.pages - match.device_pages));
  for (size_t i = 0; i < windows_.size(); ++i) windows_[i]->load(page_table.windows[i]);
  PrefixCacheCounts& counts = first_.counts();
  counts.device_hit_pages += match.device_pages;
  counts.host_hit_pages += match.pages - match.device_pages;
  counts.missed_pages += page_count - match.pages;
  if (options_.write_policy == WritePolicy::kWriteThroughSelective) note_reused(page_table, match);
  return true;
}

void PrefixCache::note_reused(const PageTable& page_table, const RadixTree::Match& match) {
  NodeId node = match.node;
  for (uint32_t pages = match.pages; pages > 0; --pages, node = tree_.parent(node)) {
    if (tree_.use_count(node) <= 1) continue;
    first_.writer().note(node);
    for (size_t i = 0; i < windows_.size(); ++i) {
      if (pages > page_table.windows[i].first) windows_[i]->account().writer().note(node);
    }
  }
}

bool PrefixCache::acquire_windows(PageTable& page_table, const RadixTree::Match& match, size_t page_count) {
  page_table.windows.assign(windows_.size(), {});
  for (size_t i = 0; i < windows_.size(); ++i) {
    const auto wanted = static_cast<uint32_t>(page_count);
    if (windows_[i]->acquire(page_table.windows[i], match.node, match.pages, wanted, match.branch_pages)) continue;
    while (i-- > 0) windows_[i]->release(page_table.windows[i]);
    page_table.windows.clear();
    return false;
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
  return first_.make_room(1) && first_.pool().allocate(1, page_table.pages);
}

bool PrefixCache::extend_windows(PageTable& page_table, size_t page_count, size_t tokens) {
  for (size_t i = 0; i < windows_.size(); ++i) {
    if (!windows_[i]->extend(page_table.windows[i], static_cast<uint32_t>(page_count), tokens)) return false;
  }
  return true;
}

bool PrefixCache::extend_for_drafts(PageTable& page_table, size_t page_count, size_t tokens) {
  for (size_t i = 0; i < windows_.size(); ++i) {
    if (windows_[i]->has_states()) continue;
    if (!windows_[i]->extend(page_table.windows[i], static_cast<uint32_t>(page_count), tokens)) return false;
  }
  return true;
}

void PrefixCache::advance_windows(PageTable& page_table, size_t tokens) {
  for (size_t i = 0; i < page_table.windows.size(); ++i) windows_[i]->advance(page_table.windows[i], tokens);
}

void PrefixCache::publish(PageTable& page_table, std::span<const TokenId> tokens, bool ends_prompt) {
  if (!options_.share_prefixes) return;
  const size_t page_size = options_.page_size;
  for (; (page_table.indexed_pages + 1) * page_size <= tokens.size(); ++page_table.indexed_pages) {
    const PageId page = page_table.pages[page_table.indexed_pages];
    const auto page_tokens = tokens.subspan(page_table.indexed_pages * page_size, page_size);
    const size_t nodes_before = tree_.node_count();
    const NodeId next = tree_.insert(page_table.node, page_tokens, page);
    const bool is_new = tree_.node_count() > nodes_before;
    if (is_new) keys_.set_computed(next, page_table, page_tokens);
    tree_.extend_lock(std::exchange(page_table.node, next), next);
    const bool taken = tree_.device_page(next) == page;
    if (taken && options_.write_policy == WritePolicy::kWriteThrough) first_.writer().note(next);
    for (size_t i = 0; i < windows_.size(); ++i) {
      windows_[i]->publish(page_table.windows[i], page_table.indexed_pages, next, !is_new);
    }
  }
  if (ends_prompt) publish_latest(page_table, true);
}

void PrefixCache::publish_latest(PageTable& page_table, bool is_fresh) {
  if (page_table.node == kNoNode) return;
  for (size_t i = 0; i < page_table.windows.size(); ++i) {
    if (!windows_[i]->has_states()) continue;
    windows_[i]->publish_latest(page_table.windows[i], page_table.node, page_table.indexed_pages, is_fresh);
  }
}

bool PrefixCache::is_fresh(const RadixTree::Match& match) const {
  const auto has_fresh = [&match](const auto& group) { return group->is_fresh(match.node); };
  return match.pages > 0 && std::ranges::any_of(windows_, has_fresh);
}

void PrefixCache::end_plan() {
  for (const auto& group : windows_) group->end_plan();
}

void PrefixCache::release(PageTable& page_table) {
  publish_latest(page_table, false);
  std::vector<PageId> own(page_table.pages.begin() + page_table.indexed_pages, page_table.pages.end());
  NodeId node = page_table.node;
  for (size_t i = page_table.indexed_pages; i-- > 0; node = tree_.parent(node)) {
    if (tree_.device_page(node) != page_table.pages[i]) own.push_back(page_table.pages[i]);
  }
  first_.pool().release(own);
  for (size_t i = 0; i < page_table.windows.size(); ++i) windows_[i]->release(page_table.windows[i]);
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
  return noted_pages() + copies_.pending_count(CopyKind::kLoad) + copies_.pending_count(CopyKind::kStore) > 0;
}

std::vector<PageCopy> PrefixCache::take_copies() {
  first_.writer().request_noted();
  for (const auto& group : windows_) group->account().writer().request_noted();
  return copies_.take();
}

Result<void> PrefixCache::acknowledge(const CopyAck& ack) {
  const auto ended = copies_.acknowledge(ack);
  if (!ended) return ended.error();
  finish(*ended);
  return {};
}

void PrefixCache::finish(const PendingCopy& ended) {
  GroupAccount& group = account(ended.copy.group);
  switch (ended.copy.kind) {
    case CopyKind::kLoad:
      for (const NodeId node : ended.nodes) group.pages().unpin(node);
      break;
    case CopyKind::kStore: {
      const std::vector<NodeId> stored = group.finish_store(ended);
      if (options_.has_store) group.persister().request(stored);
      break;
    }
    case CopyKind::kPersist: group.persister().finish(ended); break;
    case CopyKind::kProbe: prefetcher_.finish_probe(ended); break;
    case CopyKind::kFetch: prefetcher_.finish_fetch(ended); break;
    case CopyKind::kVerify:
      // A stage that was started anew holds nothing, and then the others hold their pages for nothing.
      if (ended.done < ended.copy.page_count()) clear_tree();
      break;
  }
}

void PrefixCache::request_verification() {
  request_verification(0, tree_.host_pages());
  for (const auto& group : windows_) request_verification(group->account().group(), group->pages().host_pages());
}

// Asked also when nothing is known: who answers the next time must have been there from now on.
void PrefixCache::request_verification(uint32_t group, std::span<const HostPageId> pages) {
  std::span<const HostPageId> left = pages;
  do {
    const auto part = left.first(std::min(left.size(), CopyTracker::kPagesPerPlan));
    copies_.request({.copy = {.kind = CopyKind::kVerify, .host = {part.begin(), part.end()}, .group = group}});
    left = left.subspan(part.size());
  } while (!left.empty());
}

void PrefixCache::clear_tree() {
  for (const auto& group : windows_) group->clear();
  std::vector<PageId> device;
  std::vector<HostPageId> host;
  tree_.clear(device, host);
  first_.release(device, host);
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
    if (kind == CopyKind::kStore || kind == CopyKind::kFetch) {
      account(pending.copy.group).host().release(pending.copy.host);
    }
  }
  for (const auto& group : windows_) group->on_ring_lost();
  first_.on_ring_lost();
  std::vector<PageId> device;
  std::vector<HostPageId> host;
  tree_.clear_device(device, host);
  first_.host().release(host);
  copies_.clear();
  if (options_.host_page_count > 0) request_verification();
}

// Copies that were to verify the former host pages are forgotten: the new ones are asked for instead.
void PrefixCache::resize(PoolSizes pages, std::span<const WindowPool> windows) {
  CHECK(windows.size() == windows_.size(), "{} window pools for {} groups", windows.size(), windows_.size());
  clear_tree();
  copies_.clear();
  options_.page_count = pages.device;
  options_.host_page_count = pages.host;
  options_.windows.assign(windows.begin(), windows.end());
  check_options();
  first_.resize(pages);
  for (size_t i = 0; i < windows_.size(); ++i) windows_[i]->account().resize(windows[i].pages);
  if (pages.host > 0) request_verification();
}

void PrefixCache::check_invariants(std::span<const PageTable* const> holders) const {
  const PrefixCacheAudit audit({.tree = tree_,
                                .keys = keys_,
                                .copies = copies_,
                                .first = first_,
                                .windows = windows_,
                                .prefetcher = prefetcher_});
  audit.check(holders);
}

}  // namespace millrace::cache
