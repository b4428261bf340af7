// Copies between the tiers: what the stages are asked for, and what their acknowledgements change.
#include <algorithm>
#include <utility>

#include "cache/prefix_cache.h"

namespace millrace::cache {
namespace {

/// Part of the host pages that prefetches may fill at a time: more would push out what is known to be of use.
constexpr size_t kPrefetchPart = 2;
/// Part of the host pages that may wait to be written to the store.
constexpr size_t kPersistPart = 4;
/// Pages of the copies that one plan carries, about, but for loads: a plan is one message, and its size is bounded.
constexpr size_t kPagesPerPlan = 32768;
/// Pages of one prompt that the store is asked for.
constexpr size_t kMaxProbedPages = 65536;

}  // namespace

NodeId PrefixCache::root_of(std::string_view salt) {
  const NodeId root = tree_.root(salt);
  if (options_.has_store) {
    if (keys_.size() <= root.value()) keys_.resize(root.value() + 1);
    keys_[root.value()] = root_key(salt);
  }
  return root;
}

void PrefixCache::set_key(NodeId node, const PageTable& page_table, std::span<const TokenId> tokens) {
  if (!options_.has_store) return;
  if (keys_.size() <= node.value()) keys_.resize(node.value() + 1);
  const size_t index = size_t{page_table.indexed_pages} - page_table.first_key;
  const bool is_hashed = page_table.indexed_pages >= page_table.first_key && index < page_table.keys.size();
  keys_[node.value()] = is_hashed ? page_table.keys[index] : child_key(keys_[tree_.parent(node).value()], tokens);
}

void PrefixCache::request_copy(PageCopy copy, std::vector<NodeId> nodes, bool frees_device, SequenceId request) {
  copy.id = next_copy_;
  next_copy_ = CopyId(next_copy_.value() + 1);
  PendingCopy way{copy, 0, std::move(nodes), frees_device, request};
  pending_copies_.emplace(copy.id, std::move(way));
  copies_.push_back(std::move(copy));
}

void PrefixCache::on_page_inserted(NodeId node) {
  if (options_.host_page_count == 0 || tree_.host_page(node) != kNoHostPage) return;
  if (!storing_.insert(node).second) return;
  tree_.pin(node);
  to_store_.push_back(node);
}

// Those for which the host has no room are not stored.
void PrefixCache::store(const std::vector<NodeId>& nodes) {
  PageCopy copy{.kind = CopyKind::kStore};
  std::vector<NodeId> stored;
  for (const NodeId node : nodes) {
    const auto page = allocate_host_page();
    if (!page) {
      storing_.erase(node);
      tree_.unpin(node);
      continue;
    }
    copy.device.push_back(tree_.device_page(node));
    copy.host.push_back(*page);
    stored.push_back(node);
  }
  if (!stored.empty()) request_copy(std::move(copy), std::move(stored));
}

std::vector<PageCopy> PrefixCache::take_copies() {
  if (!to_store_.empty()) store(std::exchange(to_store_, {}));
  std::vector<PageCopy> taken;
  size_t pages = 0;
  for (PageCopy& copy : std::exchange(copies_, {})) {
    const bool fits = copy.kind == CopyKind::kLoad || pages < kPagesPerPlan;
    if (fits && copy.kind != CopyKind::kLoad) pages += copy.page_count();
    if (fits && copy.kind == CopyKind::kVerify) copy.previous_verify = std::exchange(last_verify_, copy.id);
    if (fits) {
      taken.push_back(std::move(copy));
    } else {
      copies_.push_back(std::move(copy));
    }
  }
  return taken;
}

Result<void> PrefixCache::acknowledge(const CopyAck& ack) {
  const auto found = pending_copies_.find(ack.copy);
  if (found == pending_copies_.end() || ack.done > found->second.copy.page_count()) {
    return make_error(ErrorCode::kData, "{} pages of copy {} are acknowledged, which is not under way", ack.done,
                      ack.copy.value());
  }
  PendingCopy finished = std::move(found->second);
  finished.done = ack.done;
  pending_copies_.erase(found);
  finish(finished);
  return {};
}

void PrefixCache::finish(const PendingCopy& way) {
  if (way.copy.kind != CopyKind::kPersist) {
    for (const NodeId node : way.nodes) tree_.unpin(node);
  }
  switch (way.copy.kind) {
    case CopyKind::kLoad: break;
    case CopyKind::kStore: finish_store(way); break;
    case CopyKind::kPersist: finish_persist(way); break;
    case CopyKind::kProbe: finish_probe(way); break;
    case CopyKind::kFetch: finish_fetch(way); break;
    case CopyKind::kVerify: finish_verify(way); break;
  }
}

void PrefixCache::finish_store(const PendingCopy& way) {
  std::vector<NodeId> stored;
  for (size_t i = 0; i < way.nodes.size(); ++i) {
    const NodeId node = way.nodes[i];
    storing_.erase(node);
    if (i < way.done && tree_.host_page(node) == kNoHostPage) {
      tree_.set_host(node, way.copy.host[i]);
      stored.push_back(node);
    } else {
      host_pool_.release(std::span(&way.copy.host[i], 1));
    }
  }
  counts_.stored_pages += stored.size();
  if (way.frees_device) write_back_pages_ -= way.nodes.size();
  if (options_.has_store && !stored.empty()) persist(stored);
}

// A store that is behind gets no more: what it has to write would push out of the host what is in use.
void PrefixCache::persist(const std::vector<NodeId>& nodes) {
  PageCopy copy{.kind = CopyKind::kPersist};
  std::vector<NodeId> persisted;
  for (const NodeId node : nodes) {
    if (persisting_.size() * kPersistPart >= options_.host_page_count) {
      ++counts_.unpersisted_pages;
      continue;
    }
    copy.host.push_back(tree_.host_page(node));
    copy.keys.push_back(keys_[node.value()]);
    persisting_.emplace(copy.host.back(), false);
    tree_.pin_host(node);
    persisted.push_back(node);
  }
  if (!copy.host.empty()) request_copy(std::move(copy), std::move(persisted));
}

void PrefixCache::finish_persist(const PendingCopy& way) {
  counts_.persisted_pages += way.done;
  for (size_t i = 0; i < way.copy.host.size(); ++i) {
    const auto found = persisting_.find(way.copy.host[i]);
    const bool given_up = found->second;
    persisting_.erase(found);
    if (given_up) {
      host_pool_.release(std::span(&way.copy.host[i], 1));
    } else {
      tree_.unpin_host(way.nodes[i]);
    }
  }
}

// Of the pages from `first` on, which have these tokens and come after the one of key `before`: those that have been
// hashed already are not hashed again.
std::vector<PageKey> PrefixCache::keys_of(const PageTable& page_table, uint32_t first, std::span<const TokenId> tokens,
                                          PageKey before) const {
  const size_t count = tokens.size() / options_.page_size;
  std::vector<PageKey> keys;
  if (page_table.first_key <= first && page_table.first_key + page_table.keys.size() >= first + count) {
    const auto begin = page_table.keys.begin() + (first - page_table.first_key);
    keys.assign(begin, begin + static_cast<std::ptrdiff_t>(count));
    return keys;
  }
  for (size_t i = 0; i < count; ++i) {
    before = child_key(before, tokens.subspan(i * options_.page_size, options_.page_size));
    keys.push_back(before);
  }
  return keys;
}

void PrefixCache::prefetch(SequenceId id, std::string_view salt, std::span<const TokenId> tokens,
                           PageTable& page_table) {
  if (!options_.has_store) return;
  const RadixTree::Match match = tree_.match(salt, tokens);
  const size_t known = size_t{match.pages} * options_.page_size;
  const size_t pages = std::min((tokens.size() - known) / options_.page_size, kMaxProbedPages);
  if (pages == 0) return;
  Prefetch prefetch;
  prefetch.anchor = match.node == kNoNode ? root_of(salt) : match.node;
  tree_.lock(prefetch.anchor);
  prefetch.tokens.assign(tokens.begin() + static_cast<std::ptrdiff_t>(known),
                         tokens.begin() + static_cast<std::ptrdiff_t>(known + pages * options_.page_size));
  PageCopy copy{.kind = CopyKind::kProbe};
  copy.keys = keys_of(page_table, match.pages, prefetch.tokens, keys_[prefetch.anchor.value()]);
  prefetch.keys = copy.keys;
  page_table.keys = copy.keys;
  page_table.first_key = match.pages;
  const bool inserted = prefetches_.emplace(id, std::move(prefetch)).second;
  CHECK(inserted, "sequence {} is prefetched twice", id.value());
  request_copy(std::move(copy), {}, false, id);
}

void PrefixCache::stop_prefetch(SequenceId id) {
  const auto found = prefetches_.find(id);
  if (found == prefetches_.end()) return;
  found->second.wanted = false;
  if (std::erase(after_fetches_, id) > 0) {
    end_prefetch(id);
    return;
  }
  const auto unsent = std::ranges::find_if(copies_, [&](const PageCopy& copy) {
    return copy.kind == CopyKind::kProbe && pending_copies_.at(copy.id).request == id;
  });
  if (unsent == copies_.end()) return;
  pending_copies_.erase(unsent->id);
  copies_.erase(unsent);
  end_prefetch(id);
}

void PrefixCache::end_prefetch(SequenceId id) {
  const auto found = prefetches_.find(id);
  tree_.unlock(found->second.anchor);
  prefetches_.erase(found);
}

void PrefixCache::finish_probe(const PendingCopy& way) {
  prefetches_.at(way.request).found = way.done;
  fetch(way.request);
}

// What has become known since the prompt was looked up.
void PrefixCache::skip_known(Prefetch& prefetch) {
  const size_t page_size = options_.page_size;
  const NodeId node = tree_.follow(prefetch.anchor, std::span(prefetch.tokens).first(prefetch.found * page_size));
  const auto known = static_cast<std::ptrdiff_t>(tree_.depth(node) - tree_.depth(prefetch.anchor));
  if (known == 0) return;
  tree_.extend_lock(std::exchange(prefetch.anchor, node), node);
  prefetch.keys.erase(prefetch.keys.begin(), prefetch.keys.begin() + known);
  prefetch.tokens.erase(prefetch.tokens.begin(),
                        prefetch.tokens.begin() + known * static_cast<std::ptrdiff_t>(page_size));
  prefetch.found -= static_cast<size_t>(known);
}

// Pages that several prompts share are brought once: whoever wants what is under way already goes on behind it.
void PrefixCache::fetch(SequenceId id) {
  Prefetch& prefetch = prefetches_.at(id);
  skip_known(prefetch);
  if (prefetch.wanted && prefetch.found > 0 && fetching_.contains(prefetch.keys.front())) {
    after_fetches_.push_back(id);
    return;
  }
  PageCopy copy{.kind = CopyKind::kFetch};
  const size_t most = options_.host_page_count / kPrefetchPart;
  while (prefetch.wanted && copy.host.size() < prefetch.found && prefetch_pages_ < most) {
    const auto page = allocate_host_page();
    if (!page) break;
    copy.keys.push_back(prefetch.keys[copy.host.size()]);
    copy.host.push_back(*page);
    ++prefetch_pages_;
  }
  if (copy.host.empty()) {
    end_prefetch(id);
    return;
  }
  fetching_.insert(copy.keys.begin(), copy.keys.end());
  request_copy(std::move(copy), {}, false, id);
}

void PrefixCache::finish_fetch(const PendingCopy& way) {
  const Prefetch& prefetch = prefetches_.at(way.request);
  NodeId node = prefetch.anchor;
  const std::span<const TokenId> tokens(prefetch.tokens);
  for (size_t i = 0; i < way.copy.host.size(); ++i) {
    if (i < way.done) {
      node = tree_.insert_host(node, tokens.subspan(i * options_.page_size, options_.page_size), way.copy.host[i]);
      if (keys_.size() <= node.value()) keys_.resize(node.value() + 1);
      keys_[node.value()] = prefetch.keys[i];
    }
    if (i >= way.done || tree_.host_page(node) != way.copy.host[i]) {
      host_pool_.release(std::span(&way.copy.host[i], 1));
    }
  }
  prefetch_pages_ -= way.copy.host.size();
  counts_.fetched_pages += way.done;
  for (const PageKey& key : way.copy.keys) fetching_.erase(key);
  end_prefetch(way.request);
  for (const SequenceId id : std::exchange(after_fetches_, {})) fetch(id);
}

// Also when nothing is known: who answers the next time must have been there from now on.
void PrefixCache::request_verification() {
  const std::vector<HostPageId> pages = tree_.host_pages();
  std::span<const HostPageId> left(pages);
  do {
    const auto part = left.first(std::min(left.size(), kPagesPerPlan));
    request_copy({.kind = CopyKind::kVerify, .host = {part.begin(), part.end()}}, {});
    left = left.subspan(part.size());
    ++verifying_;
  } while (!left.empty());
}

// A stage that was started anew holds nothing, and then the others hold it for nothing.
void PrefixCache::finish_verify(const PendingCopy& way) {
  --verifying_;
  if (way.done < way.copy.page_count()) clear_tree();
}

}  // namespace millrace::cache
