// What leaves the tree: evicted, forgotten with the device, or all at once; and what must hold meanwhile.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "cache/radix_tree.h"

namespace millrace::cache {

void RadixTree::drop_device(NodeId id, std::vector<PageId>& device) {
  Node& node = at(id);
  device.push_back(std::exchange(node.device, kNoPage));
  --device_page_count_;
  --evictable_device_pages_;
  --at(node.parent).device_children;
  ++version_;
  refresh(id);
  refresh(node.parent);
}

void RadixTree::evict_device(size_t count, std::vector<PageId>& device, std::vector<HostPageId>& host) {
  for (; count > 0 && !device_order_.empty(); --count) {
    const NodeId id = device_order_.begin()->id;
    drop_device(id, device);
    if (at(id).host == kNoHostPage) remove_subtree(id, host);
  }
}

void RadixTree::evict_host(size_t count, std::vector<HostPageId>& host) {
  for (; count > 0 && !host_order_.empty(); --count) {
    const NodeId id = host_order_.begin()->id;
    host.push_back(std::exchange(at(id).host, kNoHostPage));
    --host_page_count_;
    ++version_;
    refresh(id);
    if (at(id).device == kNoPage) remove(id);
  }
}

NodeId RadixTree::next_device_victim() const {
  return device_order_.empty() ? kNoNode : device_order_.begin()->id;
}

NodeId RadixTree::device_victim_above(NodeId node) const {
  const NodeId above = at(node).parent;
  const bool is_next = at(above).salt == nullptr && !at(above).is_pinned() && at(above).device_children == 1;
  return is_next ? above : kNoNode;
}

// `id` is off the device and unlocked, hence so is everything below it.
void RadixTree::remove_subtree(NodeId id, std::vector<HostPageId>& host) {
  for (NodeId leaf = id;;) {
    while (at(leaf).first_child != kNoNode) leaf = at(leaf).first_child;
    if (at(leaf).host != kNoHostPage) {
      host.push_back(std::exchange(at(leaf).host, kNoHostPage));
      --host_page_count_;
    }
    const NodeId above = at(leaf).parent;
    const bool was_last = leaf == id;
    remove(leaf);
    if (was_last) return;
    leaf = above;
  }
}

void RadixTree::remove(NodeId id) {
  Node& node = at(id);
  CHECK(!node.is_pinned() && node.first_child == kNoNode && node.device == kNoPage && node.host == kNoHostPage,
        "node {} is in use", id.value());
  refresh(id);
  const auto [begin, end] = by_hash_.equal_range(node.hash);
  by_hash_.erase(std::find_if(begin, end, [id](const auto& entry) { return entry.second == id; }));
  if (node.previous_sibling == kNoNode) {
    at(node.parent).first_child = node.next_sibling;
  } else {
    at(node.previous_sibling).next_sibling = node.next_sibling;
  }
  if (node.next_sibling != kNoNode) at(node.next_sibling).previous_sibling = node.previous_sibling;
  free_.push_back(id);
  ++version_;
  refresh(node.parent);
  drop_root_if_unused(node.parent);
}

void RadixTree::drop_root_if_unused(NodeId id) {
  const Node& node = at(id);
  if (node.salt == nullptr || node.locks > 0 || node.first_child != kNoNode) return;
  roots_.erase(roots_.find(*node.salt));
  free_.push_back(id);
  ++version_;
}

void RadixTree::clear(std::vector<PageId>& device, std::vector<HostPageId>& host) {
  for (const Node& node : nodes_) {
    if (node.device != kNoPage) device.push_back(node.device);
    if (node.host != kNoHostPage) host.push_back(node.host);
  }
  nodes_.clear();
  tokens_.clear();
  free_.clear();
  roots_.clear();
  by_hash_.clear();
  device_order_.clear();
  host_order_.clear();
  evictable_device_pages_ = device_page_count_ = host_page_count_ = locks_ = 0;
  ++version_;
}

void RadixTree::clear_device(std::vector<PageId>& device, std::vector<HostPageId>& host) {
  CHECK(!locked(), "{} locks are held when the device is forgotten", locks_);
  for (Node& node : nodes_) {
    if (node.device != kNoPage) device.push_back(std::exchange(node.device, kNoPage));
    node.device_children = node.pins = node.host_pins = 0;
  }
  evictable_device_pages_ = device_page_count_ = 0;
  std::vector<NodeId> pending;
  std::vector<NodeId> unreachable;
  for (const auto& [salt, root] : roots_) pending.push_back(root);
  while (!pending.empty()) {
    const NodeId id = pending.back();
    pending.pop_back();
    for (NodeId below = at(id).first_child; below != kNoNode; below = at(below).next_sibling) {
      (at(below).host != kNoHostPage ? pending : unreachable).push_back(below);
    }
    refresh(id);
  }
  for (const NodeId id : unreachable) remove_subtree(id, host);
  ++version_;
}

std::vector<PageId> RadixTree::device_pages() const {
  std::vector<PageId> pages;
  for (const Node& node : nodes_) {
    if (node.device != kNoPage) pages.push_back(node.device);
  }
  return pages;
}

std::vector<HostPageId> RadixTree::host_pages() const {
  std::vector<HostPageId> pages;
  for (const Node& node : nodes_) {
    if (node.host != kNoHostPage) pages.push_back(node.host);
  }
  return pages;
}

// A node that has gone from the host has taken its pins there along.
RadixTree::PinCounts RadixTree::pin_counts() const {
  PinCounts keeps{.locks = locks_};
  for (const Node& node : nodes_) {
    keeps.pins += node.pins;
    if (node.host != kNoHostPage) keeps.host_pins += node.host_pins;
  }
  return keeps;
}

void RadixTree::check_invariants() const {
  size_t device = 0;
  size_t host = 0;
  size_t evictable = 0;
  size_t device_leaves = 0;
  size_t host_victims = 0;
  size_t reachable = 0;
  std::vector<NodeId> pending;
  for (const auto& [salt, root] : roots_) {
    CHECK(*at(root).salt == salt && at(root).parent == kNoNode);
    pending.push_back(root);
  }
  while (!pending.empty()) {
    const NodeId id = pending.back();
    pending.pop_back();
    ++reachable;
    const Node& node = at(id);
    uint32_t device_children = 0;
    for (NodeId below = node.first_child; below != kNoNode; below = at(below).next_sibling) {
      CHECK(at(below).parent == id && at(below).locks <= node.locks);
      device_children += at(below).device != kNoPage ? 1 : 0;
      pending.push_back(below);
    }
    CHECK(device_children == node.device_children, "node {}", id.value());
    if (node.salt != nullptr) continue;
    CHECK(node.device != kNoPage || node.host != kNoHostPage, "node {} has no page", id.value());
    CHECK(node.device == kNoPage || at(node.parent).device != kNoPage || at(node.parent).salt != nullptr);
    device += node.device != kNoPage ? 1 : 0;
    host += node.host != kNoHostPage ? 1 : 0;
    evictable += node.device != kNoPage && !node.is_pinned() ? 1 : 0;
    device_leaves += node.device != kNoPage && !node.is_pinned() && device_children == 0 ? 1 : 0;
    const bool host_can_go = node.device != kNoPage || node.first_child == kNoNode;
    host_victims += node.host != kNoHostPage && !node.is_pinned() && node.host_pins == 0 && host_can_go ? 1 : 0;
  }
  CHECK(device == device_page_count_ && host == host_page_count_ && evictable == evictable_device_pages_);
  CHECK(device_leaves == device_order_.size() && host_victims == host_order_.size());
  CHECK(reachable == nodes_.size() - free_.size());
  CHECK(by_hash_.size() == node_count());
}

}  // namespace millrace::cache
