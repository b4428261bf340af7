#include "cache/radix_tree.h"

#include <utility>

#include "base/check.h"

namespace millrace::cache {

RadixTree::RadixTree(uint32_t page_size) : trie_(page_size) {}

RadixTree::Match RadixTree::match(std::string_view salt, std::span<const TokenId> tokens) const {
  Match match;
  match.device_node = match.node = trie_.find_root(salt);
  if (match.node == kNoNode) return match;
  const uint32_t page_size = trie_.page_size();
  for (; tokens.size() >= page_size; tokens = tokens.subspan(page_size)) {
    const NodeId next = trie_.child(match.node, tokens.first(page_size));
    if (next == kNoNode) break;
    match.node = next;
    ++match.pages;
    if (at(next).device == kNoPage) continue;
    match.device_node = next;
    ++match.device_pages;
  }
  return match;
}

NodeId RadixTree::follow(NodeId node, std::span<const TokenId> tokens) const {
  const uint32_t page_size = trie_.page_size();
  for (; tokens.size() >= page_size; tokens = tokens.subspan(page_size)) {
    const NodeId next = trie_.child(node, tokens.first(page_size));
    if (next == kNoNode) break;
    node = next;
  }
  return node;
}

void RadixTree::reset(NodeId id) {
  if (residency_.size() <= id.value()) residency_.resize(id.value() + 1);
  at(id) = {.used = clock_};
}

NodeId RadixTree::root(std::string_view salt) {
  const NodeId known = trie_.find_root(salt);
  if (known != kNoNode) return known;
  const NodeId root = trie_.add_root(salt);
  reset(root);
  return root;
}

NodeId RadixTree::find_or_add(NodeId parent, std::span<const TokenId> tokens) {
  const NodeId known = trie_.child(parent, tokens);
  if (known != kNoNode) return known;
  const NodeId added = trie_.add(parent, tokens);
  reset(added);
  ++version_;
  refresh(parent);
  return added;
}

NodeId RadixTree::insert(NodeId parent, std::span<const TokenId> tokens, PageId page) {
  const NodeId id = find_or_add(parent, tokens);
  if (at(id).device == kNoPage) set_device(id, page);
  return id;
}

NodeId RadixTree::insert_host(NodeId parent, std::span<const TokenId> tokens, HostPageId host_page) {
  const NodeId id = find_or_add(parent, tokens);
  if (at(id).host == kNoHostPage) set_host(id, host_page);
  return id;
}

void RadixTree::set_device(NodeId id, PageId page) {
  const NodeId parent = trie_.parent(id);
  Residency& node = at(id);
  CHECK(node.device == kNoPage, "node {} is on the device already", id.value());
  CHECK(at(parent).device != kNoPage || trie_.is_root(parent), "node {}'s parent is not on the device", id.value());
  node.device = page;
  ++at(parent).device_children;
  ++device_page_count_;
  if (!node.is_pinned()) ++evictable_device_pages_;
  ++version_;
  refresh(id);
  refresh(parent);
}

void RadixTree::set_host(NodeId id, HostPageId page) {
  CHECK(at(id).host == kNoHostPage, "node {} is on the host already", id.value());
  at(id).host = page;
  ++host_page_count_;
  ++version_;
  refresh(id);
}

void RadixTree::count_evictable(const Residency& node, bool was_pinned) {
  if (node.device == kNoPage || was_pinned == node.is_pinned()) return;
  if (was_pinned) {
    ++evictable_device_pages_;
  } else {
    --evictable_device_pages_;
  }
}

void RadixTree::change_locks(NodeId from, NodeId until, int change) {
  for (NodeId id = from; id != until; id = trie_.parent(id)) {
    CHECK(id != kNoNode, "node {} is not below node {}", from.value(), until.value());
    Residency& node = at(id);
    CHECK(change > 0 || node.locks > 0, "node {} was unlocked too often", id.value());
    const bool was_pinned = node.is_pinned();
    node.locks += static_cast<uint32_t>(change);
    count_evictable(node, was_pinned);
    if (change > 0) ++node.uses;
    node.used = clock_;
    refresh(id);
  }
}

void RadixTree::lock(NodeId node) {
  ++clock_;
  ++locks_;
  change_locks(node, kNoNode, 1);
}

void RadixTree::unlock(NodeId node) {
  CHECK(locks_ > 0);
  --locks_;
  ++clock_;
  NodeId root = node;
  while (trie_.parent(root) != kNoNode) root = trie_.parent(root);
  change_locks(node, kNoNode, -1);
  drop_root_if_unused(root);
}

void RadixTree::pin(NodeId id) {
  Residency& node = at(id);
  CHECK(node.device != kNoPage, "node {} is pinned off the device", id.value());
  const bool was_pinned = node.is_pinned();
  ++node.pins;
  count_evictable(node, was_pinned);
  refresh(id);
}

void RadixTree::unpin(NodeId id) {
  Residency& node = at(id);
  CHECK(node.pins > 0, "node {} was unpinned too often", id.value());
  --node.pins;
  count_evictable(node, true);
  refresh(id);
}

void RadixTree::pin_host(NodeId id) {
  CHECK(at(id).host != kNoHostPage, "node {} is pinned off the host", id.value());
  ++at(id).host_pins;
  refresh(id);
}

void RadixTree::unpin_host(NodeId id) {
  CHECK(at(id).host_pins > 0, "node {} was unpinned too often on the host", id.value());
  --at(id).host_pins;
  refresh(id);
}

void RadixTree::extend_lock(NodeId from, NodeId to) {
  change_locks(to, from, 1);
}

// What is locked has its ancestors locked.
size_t RadixTree::evictable_above(NodeId id) const {
  size_t count = 0;
  for (; !trie_.is_root(id) && at(id).locks == 0; id = trie_.parent(id)) count += at(id).is_pinned() ? 0 : 1;
  return count;
}

uint32_t RadixTree::exclusively_locked(NodeId id, NodeId other) const {
  uint32_t count = 0;
  for (; !trie_.is_root(id) && at(id).locks == 1; id = trie_.parent(id)) {
    while (other != kNoNode && depth(other) > depth(id)) other = trie_.parent(other);
    if (other == id) break;
    if (at(id).pins == 0) ++count;
  }
  return count;
}

bool RadixTree::is_device_victim(NodeId id) const {
  const Residency& node = at(id);
  return node.device != kNoPage && !node.is_pinned() && node.device_children == 0;
}

bool RadixTree::is_host_victim(NodeId id) const {
  const Residency& node = at(id);
  return node.host != kNoHostPage && !node.is_pinned() && node.host_pins == 0 &&
         (node.device != kNoPage || trie_.first_child(id) == kNoNode);
}

void RadixTree::refresh(NodeId id) {
  if (is_device_victim(id)) {
    device_order_.insert(id, at(id).used, depth(id));
  } else {
    device_order_.erase(id);
  }
  if (is_host_victim(id)) {
    host_order_.insert(id, at(id).used, depth(id));
  } else {
    host_order_.erase(id);
  }
}

void RadixTree::drop_device(NodeId id, std::vector<PageId>& device) {
  if (listener_ != nullptr) listener_->on_off_device(id);
  const NodeId parent = trie_.parent(id);
  device.push_back(std::exchange(at(id).device, kNoPage));
  --device_page_count_;
  --evictable_device_pages_;
  --at(parent).device_children;
  ++version_;
  refresh(id);
  refresh(parent);
}

void RadixTree::evict_device(size_t count, std::vector<PageId>& device, std::vector<HostPageId>& host) {
  for (; count > 0 && !device_order_.empty(); --count) {
    const NodeId id = device_order_.next();
    drop_device(id, device);
    if (at(id).host == kNoHostPage) remove_subtree(id, host);
  }
}

void RadixTree::evict_host(size_t count, std::vector<HostPageId>& host) {
  for (; count > 0 && !host_order_.empty(); --count) {
    const NodeId id = host_order_.next();
    host.push_back(std::exchange(at(id).host, kNoHostPage));
    --host_page_count_;
    ++version_;
    refresh(id);
    if (at(id).device == kNoPage) remove(id);
  }
}

NodeId RadixTree::device_victim_above(NodeId node) const {
  const NodeId above = trie_.parent(node);
  const bool is_next = !trie_.is_root(above) && !at(above).is_pinned() && at(above).device_children == 1;
  return is_next ? above : kNoNode;
}

// `id` is off the device and unlocked, hence so is everything below it.
void RadixTree::remove_subtree(NodeId id, std::vector<HostPageId>& host) {
  for (NodeId leaf = id;;) {
    while (trie_.first_child(leaf) != kNoNode) leaf = trie_.first_child(leaf);
    if (at(leaf).host != kNoHostPage) {
      host.push_back(std::exchange(at(leaf).host, kNoHostPage));
      --host_page_count_;
    }
    const NodeId above = trie_.parent(leaf);
    const bool was_last = leaf == id;
    remove(leaf);
    if (was_last) return;
    leaf = above;
  }
}

void RadixTree::remove(NodeId id) {
  const Residency& node = at(id);
  CHECK(!node.is_pinned() && node.device == kNoPage && node.host == kNoHostPage, "node {} is in use", id.value());
  if (listener_ != nullptr) listener_->on_removed(id);
  refresh(id);
  const NodeId parent = trie_.parent(id);
  trie_.remove(id);
  at(id) = {};
  ++version_;
  refresh(parent);
  drop_root_if_unused(parent);
}

void RadixTree::drop_root_if_unused(NodeId id) {
  if (!trie_.is_root(id) || at(id).locks > 0 || trie_.first_child(id) != kNoNode) return;
  trie_.remove_root(id);
  at(id) = {};
  ++version_;
}

void RadixTree::clear(std::vector<PageId>& device, std::vector<HostPageId>& host) {
  for (const Residency& node : residency_) {
    if (node.device != kNoPage) device.push_back(node.device);
    if (node.host != kNoHostPage) host.push_back(node.host);
  }
  trie_.clear();
  residency_.clear();
  device_order_.clear();
  host_order_.clear();
  evictable_device_pages_ = device_page_count_ = host_page_count_ = locks_ = 0;
  ++version_;
}

void RadixTree::clear_device(std::vector<PageId>& device, std::vector<HostPageId>& host) {
  CHECK(!locked(), "{} locks are held when the device is forgotten", locks_);
  for (Residency& node : residency_) {
    if (node.device != kNoPage) device.push_back(std::exchange(node.device, kNoPage));
    node.device_children = node.pins = node.host_pins = 0;
  }
  evictable_device_pages_ = device_page_count_ = 0;
  std::vector<NodeId> pending = trie_.roots();
  std::vector<NodeId> unreachable;
  while (!pending.empty()) {
    const NodeId id = pending.back();
    pending.pop_back();
    for (NodeId below = trie_.first_child(id); below != kNoNode; below = trie_.next_sibling(below)) {
      (at(below).host != kNoHostPage ? pending : unreachable).push_back(below);
    }
    refresh(id);
  }
  for (const NodeId id : unreachable) remove_subtree(id, host);
  ++version_;
}

std::vector<PageId> RadixTree::device_pages() const {
  std::vector<PageId> pages;
  for (const Residency& node : residency_) {
    if (node.device != kNoPage) pages.push_back(node.device);
  }
  return pages;
}

std::vector<HostPageId> RadixTree::host_pages() const {
  std::vector<HostPageId> pages;
  for (const Residency& node : residency_) {
    if (node.host != kNoHostPage) pages.push_back(node.host);
  }
  return pages;
}

// A node that has gone from the host has taken its pins there along.
RadixTree::PinCounts RadixTree::pin_counts() const {
  PinCounts counts{.locks = locks_};
  for (const Residency& node : residency_) {
    counts.pins += node.pins;
    if (node.host != kNoHostPage) counts.host_pins += node.host_pins;
  }
  return counts;
}

void RadixTree::check_invariants() const {
  trie_.check_invariants();
  size_t device = 0;
  size_t host = 0;
  size_t evictable = 0;
  size_t device_victims = 0;
  size_t host_victims = 0;
  std::vector<NodeId> pending = trie_.roots();
  while (!pending.empty()) {
    const NodeId id = pending.back();
    pending.pop_back();
    const Residency& node = at(id);
    uint32_t device_children = 0;
    for (NodeId below = trie_.first_child(id); below != kNoNode; below = trie_.next_sibling(below)) {
      CHECK(at(below).locks <= node.locks, "node {} has more locks than the one above", below.value());
      device_children += at(below).device != kNoPage ? 1 : 0;
      pending.push_back(below);
    }
    CHECK(device_children == node.device_children, "node {}", id.value());
    if (trie_.is_root(id)) continue;
    const bool is_below_device = at(trie_.parent(id)).device != kNoPage || trie_.is_root(trie_.parent(id));
    CHECK(node.device != kNoPage || node.host != kNoHostPage, "node {} has no page", id.value());
    CHECK(node.device == kNoPage || is_below_device, "node {} is on the device, the one above is not", id.value());
    device += node.device != kNoPage ? 1 : 0;
    host += node.host != kNoHostPage ? 1 : 0;
    evictable += node.device != kNoPage && !node.is_pinned() ? 1 : 0;
    device_victims += is_device_victim(id) ? 1 : 0;
    host_victims += is_host_victim(id) ? 1 : 0;
  }
  CHECK(device == device_page_count_ && host == host_page_count_ && evictable == evictable_device_pages_);
  CHECK(device_victims == device_order_.size() && host_victims == host_order_.size());
}

}  // namespace millrace::cache
