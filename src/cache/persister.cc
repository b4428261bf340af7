#include "cache/persister.h"

#include <utility>

namespace millrace::cache {
namespace {

/// One in this many host pages may wait to be written to the store.
constexpr size_t kPersistFraction = 4;

}  // namespace

Persister::Persister(GroupPages& pages, const NodeKeys& keys, HostTier& host, CopyTracker& copies,
                     PrefixCacheCounts& counts, uint32_t group)
    : pages_(pages), keys_(keys), host_(host), copies_(copies), counts_(counts), group_(group) {}

void Persister::request(const std::vector<NodeId>& nodes) {
  PendingCopy request{.copy = {.kind = CopyKind::kPersist, .group = group_}};
  for (const NodeId node : nodes) {
    if (host_.persisting_count() * kPersistFraction >= host_.page_count()) {
      ++counts_.unpersisted_pages;
      continue;
    }
    request.copy.host.push_back(pages_.host_page(node));
    request.copy.keys.push_back(keys_.at(node));
    request.nodes.push_back(node);
    host_.begin_persist(node);
  }
  if (!request.nodes.empty()) copies_.request(std::move(request));
}

void Persister::finish(const PendingCopy& ended) {
  counts_.persisted_pages += ended.done;
  for (size_t i = 0; i < ended.nodes.size(); ++i) host_.end_persist(ended.copy.host[i], ended.nodes[i]);
}

}  // namespace millrace::cache
