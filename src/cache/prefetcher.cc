#include "cache/prefetcher.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace millrace::cache {
namespace {

/// One in this many host pages may be filled by fetches at a time: more would push out what is known to be of use.
constexpr size_t kPrefetchFraction = 2;
/// Pages of one prompt that the store is asked for.
constexpr size_t kMaxProbedPages = 65536;

}  // namespace

Prefetcher::Prefetcher(RadixTree& tree, NodeKeys& keys, HostTier& host, CopyTracker& copies, PrefixCacheCounts& counts,
                       uint32_t page_size, std::span<const std::unique_ptr<WindowGroup>> windows)
    : tree_(tree),
      keys_(keys),
      host_(host),
      copies_(copies),
      counts_(counts),
      page_size_(page_size),
      windows_(windows),
      filled_(1 + windows.size()) {}

HostTier& Prefetcher::host_of(uint32_t group) {
  return group == 0 ? host_ : windows_[group - 1]->account().host();
}

// What is known to the end may still lack pages of window groups, which need no probe.
void Prefetcher::start(SequenceId id, std::string_view salt, std::span<const TokenId> tokens, PageTable& page_table) {
  const RadixTree::Match match = tree_.match(salt, tokens);
  const size_t known = size_t{match.pages} * page_size_;
  const size_t pages = std::min((tokens.size() - known) / page_size_, kMaxProbedPages);
  if (pages == 0 && (windows_.empty() || match.pages == 0)) return;
  Prefetch prefetch;
  prefetch.anchor = match.node == kNoNode ? keys_.root(salt) : match.node;
  tree_.lock(prefetch.anchor);
  const auto missing = tokens.subspan(known, pages * page_size_);
  prefetch.tokens.assign(missing.begin(), missing.end());
  prefetch.keys = keys_.after(prefetch.anchor, page_table, match.pages, missing);
  page_table.keys = prefetch.keys;
  page_table.first_key = match.pages;
  PendingCopy probe{.copy = {.kind = CopyKind::kProbe, .keys = prefetch.keys}, .request = id};
  const bool inserted = prefetches_.emplace(id, std::move(prefetch)).second;
  CHECK(inserted, "sequence {} is prefetched twice", id.value());
  if (pages > 0) {
    copies_.request(std::move(probe));
  } else if (!probe_snapshots(id)) {
    fetch(id);
  }
}

const WindowGroup* Prefetcher::state_group() const {
  return !windows_.empty() && windows_.back()->has_states() ? windows_.back().get() : nullptr;
}

/// Asks for the snapshots after the last one that is known, and returns whether there is anything to ask for.
bool Prefetcher::probe_snapshots(SequenceId id) {
  const WindowGroup* const states = state_group();
  Prefetch& prefetch = prefetches_.at(id);
  if (states == nullptr || !prefetch.wanted) return false;
  PendingCopy probe{.copy = {.kind = CopyKind::kProbe, .group = states->account().group()}, .request = id};
  std::vector<PageKey>& keys = probe.copy.keys;
  NodeId node = prefetch.anchor;
  uint32_t known = tree_.depth(node);
  for (; known > 0 && !states->pages().known(node); --known, node = tree_.parent(node)) keys.push_back(keys_.at(node));
  std::ranges::reverse(keys);
  const auto found = std::span(prefetch.keys).first(prefetch.found);
  keys.insert(keys.end(), found.begin(), found.end());
  const size_t left_out = keys.size() - std::min(keys.size(), kMaxProbedPages);
  keys.erase(keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(left_out));
  prefetch.probed_depth = known + static_cast<uint32_t>(left_out);
  if (keys.empty()) return false;
  copies_.request(std::move(probe));
  return true;
}

// A prefix after the last snapshot would be computed again. What is known after it stays.
void Prefetcher::end_at_snapshot(Prefetch& prefetch, uint32_t depth) {
  const uint32_t anchor_depth = tree_.depth(prefetch.anchor);
  prefetch.found = std::min<size_t>(prefetch.found, depth - std::min(depth, anchor_depth));
  prefetch.snapshot_depth = depth;
}

void Prefetcher::stop(SequenceId id) {
  const auto found = prefetches_.find(id);
  if (found == prefetches_.end()) return;
  found->second.wanted = false;
  if (std::erase(after_fetches_, id) > 0 || copies_.withdraw_probe(id)) end(id);
}

void Prefetcher::end(SequenceId id) {
  const auto found = prefetches_.find(id);
  tree_.unlock(found->second.anchor);
  prefetches_.erase(found);
}

void Prefetcher::finish_probe(const PendingCopy& ended) {
  const SequenceId id = ended.request;
  Prefetch& prefetch = prefetches_.at(id);
  if (ended.copy.group > 0) {
    end_at_snapshot(prefetch, prefetch.probed_depth + ended.done);
  } else {
    prefetch.found = ended.done;
    if (probe_snapshots(id)) return;
  }
  fetch(id);
}

// Drops what has become known since the prompt was looked up.
void Prefetcher::skip_known(Prefetch& prefetch) {
  const NodeId node = tree_.follow(prefetch.anchor, std::span(prefetch.tokens).first(prefetch.found * page_size_));
  const auto known = static_cast<std::ptrdiff_t>(tree_.depth(node) - tree_.depth(prefetch.anchor));
  if (known == 0) return;
  tree_.extend_lock(std::exchange(prefetch.anchor, node), node);
  prefetch.keys.erase(prefetch.keys.begin(), prefetch.keys.begin() + known);
  prefetch.tokens.erase(prefetch.tokens.begin(),
                        prefetch.tokens.begin() + known * static_cast<std::ptrdiff_t>(page_size_));
  prefetch.found -= static_cast<size_t>(known);
}

PendingCopy Prefetcher::prefix_fetch(const Prefetch& prefetch) {
  PendingCopy request{.copy = {.kind = CopyKind::kFetch}};
  PageCopy& copy = request.copy;
  const size_t most = host_.page_count() / kPrefetchFraction;
  while (copy.host.size() < prefetch.found && filled_.front() < most) {
    const auto page = host_.allocate();
    if (!page) break;
    copy.keys.push_back(prefetch.keys[copy.host.size()]);
    copy.host.push_back(*page);
    ++filled_.front();
  }
  return request;
}

// A part of what the window sees is of no use.
PendingCopy Prefetcher::window_fetch(Prefetch& prefetch, size_t index, size_t page_count) {
  WindowGroup& window = *windows_[index];
  const uint32_t group = window.account().group();
  HostTier& host = window.account().host();
  PendingCopy request{.copy = {.kind = CopyKind::kFetch, .group = group}};
  PageCopy& copy = request.copy;
  const uint32_t anchor_depth = tree_.depth(prefetch.anchor);
  const auto end = std::min(prefetch.snapshot_depth, anchor_depth + static_cast<uint32_t>(page_count));
  NodeId node = prefetch.anchor;
  for (uint32_t depth = end; depth > window.first_page(size_t{end} * page_size_); --depth) {
    while (depth <= anchor_depth && tree_.depth(node) > depth) node = tree_.parent(node);
    if (depth <= anchor_depth && window.pages().known(node)) continue;
    const auto page = filled_[group] < host.page_count() / kPrefetchFraction ? host.allocate() : std::nullopt;
    if (!page) {
      host.release(copy.host);
      filled_[group] -= copy.host.size();
      return {.copy = {.kind = CopyKind::kFetch, .group = group}};
    }
    copy.keys.push_back(depth <= anchor_depth ? keys_.at(node) : prefetch.keys[depth - anchor_depth - 1]);
    copy.host.push_back(*page);
    prefetch.depths[index].push_back(depth);
    ++filled_[group];
  }
  return request;
}

void Prefetcher::fetch(SequenceId id) {
  Prefetch& prefetch = prefetches_.at(id);
  skip_known(prefetch);
  if (prefetch.wanted && prefetch.found > 0 && fetching_.contains(prefetch.keys.front())) {
    after_fetches_.push_back(id);
    return;
  }
  std::vector<PendingCopy> fetches;
  if (prefetch.wanted) {
    fetches.push_back(prefix_fetch(prefetch));
    fetching_.insert(fetches.front().copy.keys.begin(), fetches.front().copy.keys.end());
    prefetch.depths.assign(windows_.size(), {});
    const size_t page_count = fetches.front().copy.host.size();
    for (size_t i = 0; i < windows_.size(); ++i) fetches.push_back(window_fetch(prefetch, i, page_count));
    std::erase_if(fetches, [](const PendingCopy& one) { return one.copy.host.empty(); });
  }
  if (fetches.empty()) {
    end(id);
    return;
  }
  prefetch.pending = fetches.size();
  for (PendingCopy& request : fetches) {
    request.request = id;
    copies_.request(std::move(request));
  }
}

/// Returns the last page of the prefix that is known now.
NodeId Prefetcher::insert_prefix(const Prefetch& prefetch, const PendingCopy& ended) {
  NodeId node = prefetch.anchor;
  const std::span<const TokenId> tokens(prefetch.tokens);
  for (size_t i = 0; i < ended.copy.host.size(); ++i) {
    const HostPageId page = ended.copy.host[i];
    if (i < ended.done) {
      node = tree_.insert_host(node, tokens.subspan(i * page_size_, page_size_), page);
      keys_.set(node, prefetch.keys[i]);
    }
    if (i >= ended.done || tree_.host_page(node) != page) host_.release({&page, 1});
  }
  counts_.fetched_pages += ended.done;
  for (const PageKey& key : ended.copy.keys) fetching_.erase(key);
  return node;
}

void Prefetcher::insert_window(const Prefetch& prefetch, const PendingCopy& ended, NodeId last) {
  const size_t index = ended.copy.group - 1;
  WindowGroup& window = *windows_[index];
  NodeId node = last;
  for (size_t i = 0; i < ended.copy.host.size(); ++i) {
    const HostPageId page = ended.copy.host[i];
    const uint32_t depth = prefetch.depths[index][i];
    while (tree_.depth(node) > depth) node = tree_.parent(node);
    const bool is_wanted = i < ended.done && tree_.depth(node) == depth;
    if (is_wanted && window.pages().host_page(node) == kNoHostPage) {
      window.pages().set_host(node, page);
      ++window.account().counts().fetched_pages;
    } else {
      window.account().host().release({&page, 1});
    }
  }
}

// The pages of window groups belong to nodes that the prefix brings.
void Prefetcher::finish_fetch(const PendingCopy& ended) {
  Prefetch& prefetch = prefetches_.at(ended.request);
  prefetch.arrived.push_back(ended);
  filled_[ended.copy.group] -= ended.copy.host.size();
  if (--prefetch.pending > 0) return;
  std::ranges::sort(prefetch.arrived, {}, [](const PendingCopy& one) { return one.copy.group; });
  NodeId last = prefetch.anchor;
  for (const PendingCopy& one : prefetch.arrived) {
    if (one.copy.group == 0) {
      last = insert_prefix(prefetch, one);
    } else {
      insert_window(prefetch, one, last);
    }
  }
  prefetch.arrived.clear();
  end(ended.request);
  for (const SequenceId id : std::exchange(after_fetches_, {})) fetch(id);
}

std::vector<HostPageId> Prefetcher::arrived_pages(uint32_t group) const {
  std::vector<HostPageId> pages;
  for (const auto& [id, prefetch] : prefetches_) {
    for (const PendingCopy& one : prefetch.arrived) {
      if (one.copy.group == group) pages.insert(pages.end(), one.copy.host.begin(), one.copy.host.end());
    }
  }
  return pages;
}

void Prefetcher::clear() {
  while (!prefetches_.empty()) {
    for (const PendingCopy& one : prefetches_.begin()->second.arrived) host_of(one.copy.group).release(one.copy.host);
    end(prefetches_.begin()->first);
  }
  fetching_.clear();
  after_fetches_.clear();
  std::ranges::fill(filled_, 0);
}

size_t Prefetcher::wanted_count() const {
  return static_cast<size_t>(std::ranges::count_if(prefetches_, [](const auto& entry) { return entry.second.wanted; }));
}

void Prefetcher::check_keys() const {
  for (const auto& [id, prefetch] : prefetches_) {
    if (prefetch.keys.empty()) continue;
    const auto first_page = std::span<const TokenId>(prefetch.tokens).first(page_size_);
    CHECK(prefetch.keys.front() == child_key(keys_.at(prefetch.anchor), first_page),
          "sequence {} asks the store for other pages than its own", id.value());
  }
}

}  // namespace millrace::cache
