#include "cache/host_writer.h"

#include <utility>

namespace millrace::cache {

HostWriter::HostWriter(GroupPages& pages, HostTier& host, CopyTracker& copies, PrefixCacheCounts& counts,
                       uint32_t group)
    : pages_(pages), host_(host), copies_(copies), counts_(counts), group_(group) {}

void HostWriter::note(NodeId node) {
  if (host_.page_count() == 0 || pages_.host_page(node) != kNoHostPage) return;
  if (!storing_.insert(node).second) return;
  pages_.pin(node);
  noted_.push_back(node);
}

void HostWriter::request_noted() {
  PendingCopy request{.copy = {.kind = CopyKind::kStore, .group = group_}};
  for (const NodeId node : std::exchange(noted_, {})) {
    const auto page = host_.allocate();
    if (!page) {
      storing_.erase(node);
      pages_.unpin(node);
      continue;
    }
    request.copy.device.push_back(pages_.device_page(node));
    request.copy.host.push_back(*page);
    request.nodes.push_back(node);
  }
  if (!request.nodes.empty()) copies_.request(std::move(request));
}

bool HostWriter::write_back(NodeId victim, size_t count) {
  PendingCopy request{.copy = {.kind = CopyKind::kStore, .group = group_}, .frees_device = true};
  for (NodeId node = victim; node != kNoNode && request.nodes.size() < count;) {
    if (pages_.host_page(node) != kNoHostPage) break;
    pages_.pin(node);  // before the host makes room, which may evict
    const auto page = host_.allocate();
    if (!page) {
      pages_.unpin(node);
      break;
    }
    request.copy.device.push_back(pages_.device_page(node));
    request.copy.host.push_back(*page);
    request.nodes.push_back(node);
    storing_.insert(node);
    node = pages_.device_victim_above(node);
  }
  if (request.nodes.empty()) return false;
  write_back_pages_ += request.nodes.size();
  copies_.request(std::move(request));
  return true;
}

std::vector<NodeId> HostWriter::finish(const PendingCopy& ended) {
  std::vector<NodeId> stored;
  for (size_t i = 0; i < ended.nodes.size(); ++i) {
    const NodeId node = ended.nodes[i];
    storing_.erase(node);
    if (i < ended.done && pages_.host_page(node) == kNoHostPage) {
      pages_.set_host(node, ended.copy.host[i]);
      stored.push_back(node);
    } else {
      host_.release({&ended.copy.host[i], 1});
    }
  }
  counts_.stored_pages += stored.size();
  if (ended.frees_device) write_back_pages_ -= ended.nodes.size();
  return stored;
}

void HostWriter::clear() {
  noted_.clear();
  storing_.clear();
  write_back_pages_ = 0;
}

}  // namespace millrace::cache
