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
                       uint32_t page_size)
    : tree_(tree), keys_(keys), host_(host), copies_(copies), counts_(counts), page_size_(page_size) {}

void Prefetcher::start(SequenceId id, std::string_view salt, std::span<const TokenId> tokens, PageTable& page_table) {
  const RadixTree::Match match = tree_.match(salt, tokens);
  const size_t known = size_t{match.pages} * page_size_;
  const size_t pages = std::min((tokens.size() - known) / page_size_, kMaxProbedPages);
  if (pages == 0) return;
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
  copies_.request(std::move(probe));
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
  prefetches_.at(ended.request).found = ended.done;
  fetch(ended.request);
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

void Prefetcher::fetch(SequenceId id) {
  Prefetch& prefetch = prefetches_.at(id);
  skip_known(prefetch);
  if (prefetch.wanted && prefetch.found > 0 && fetching_.contains(prefetch.keys.front())) {
    after_fetches_.push_back(id);
    return;
  }
  PendingCopy request{.copy = {.kind = CopyKind::kFetch}, .request = id};
  PageCopy& copy = request.copy;
  const size_t most = host_.page_count() / kPrefetchFraction;
  while (prefetch.wanted && copy.host.size() < prefetch.found && filled_pages_ < most) {
    const auto page = host_.allocate();
    if (!page) break;
    copy.keys.push_back(prefetch.keys[copy.host.size()]);
    copy.host.push_back(*page);
    ++filled_pages_;
  }
  if (copy.host.empty()) {
    end(id);
    return;
  }
  fetching_.insert(copy.keys.begin(), copy.keys.end());
  copies_.request(std::move(request));
}

void Prefetcher::finish_fetch(const PendingCopy& ended) {
  const Prefetch& prefetch = prefetches_.at(ended.request);
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
  filled_pages_ -= ended.copy.host.size();
  counts_.fetched_pages += ended.done;
  for (const PageKey& key : ended.copy.keys) fetching_.erase(key);
  end(ended.request);
  for (const SequenceId id : std::exchange(after_fetches_, {})) fetch(id);
}

void Prefetcher::clear() {
  while (!prefetches_.empty()) end(prefetches_.begin()->first);
  fetching_.clear();
  after_fetches_.clear();
  filled_pages_ = 0;
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
