#include "cache/radix_tree.h"

#include <algorithm>

#include "base/check.h"

namespace millrace::cache {
namespace {

uint64_t hash_of(NodeId parent, std::span<const TokenId> tokens) {
  const std::string_view bytes(reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes());
  return std::hash<std::string_view>{}(bytes) ^ (uint64_t{parent.value()} + 1) * 0x9E3779B97F4A7C15u;
}

}  // namespace

RadixTree::RadixTree(uint32_t page_size) : page_size_(page_size) {
  CHECK(page_size > 0);
}

std::span<const TokenId> RadixTree::tokens(NodeId node) const {
  return std::span(tokens_).subspan(size_t{node.value()} * page_size_, page_size_);
}

// The first child is looked at before the table: most pages have one child only.
NodeId RadixTree::child(NodeId parent, std::span<const TokenId> tokens) const {
  const NodeId first = at(parent).first_child;
  if (first == kNoNode) return kNoNode;
  if (std::ranges::equal(this->tokens(first), tokens)) return first;
  if (at(first).next_sibling == kNoNode) return kNoNode;
  const auto [begin, end] = by_hash_.equal_range(hash_of(parent, tokens));
  for (auto found = begin; found != end; ++found) {
    if (at(found->second).parent == parent && std::ranges::equal(this->tokens(found->second), tokens)) {
      return found->second;
    }
  }
  return kNoNode;
}

RadixTree::Match RadixTree::match(std::string_view salt, std::span<const TokenId> tokens) const {
  Match match;
  const auto found = roots_.find(std::string(salt));
  if (found == roots_.end()) return match;
  match.device_node = match.node = found->second;
  for (; tokens.size() >= page_size_; tokens = tokens.subspan(page_size_)) {
    const NodeId next = child(match.node, tokens.first(page_size_));
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
  for (; tokens.size() >= page_size_; tokens = tokens.subspan(page_size_)) {
    const NodeId next = child(node, tokens.first(page_size_));
    if (next == kNoNode) break;
    node = next;
  }
  return node;
}

NodeId RadixTree::allocate() {
  NodeId id;
  if (free_.empty()) {
    id = NodeId(static_cast<uint32_t>(nodes_.size()));
    nodes_.emplace_back();
    tokens_.resize(tokens_.size() + page_size_);
  } else {
    id = free_.back();
    free_.pop_back();
    at(id) = {};
  }
  at(id).used = clock_;
  return id;
}

NodeId RadixTree::root(std::string_view salt) {
  const auto [entry, is_new] = roots_.try_emplace(std::string(salt), kNoNode);
  if (is_new) {
    entry->second = allocate();
    at(entry->second).salt = &entry->first;
  }
  return entry->second;
}

NodeId RadixTree::add(NodeId parent, std::span<const TokenId> tokens) {
  CHECK(tokens.size() == page_size_, "a page of {} tokens, wanted {}", tokens.size(), page_size_);
  const NodeId id = allocate();
  std::ranges::copy(tokens, tokens_.begin() + static_cast<std::ptrdiff_t>(size_t{id.value()} * page_size_));
  Node& node = at(id);
  Node& above = at(parent);
  node.parent = parent;
  node.depth = above.depth + 1;
  node.hash = hash_of(parent, tokens);
  node.next_sibling = above.first_child;
  if (above.first_child != kNoNode) at(above.first_child).previous_sibling = id;
  above.first_child = id;
  by_hash_.emplace(node.hash, id);
  ++version_;
  refresh(parent);
  return id;
}

NodeId RadixTree::insert(NodeId parent, std::span<const TokenId> tokens, PageId page) {
  NodeId id = child(parent, tokens);
  if (id == kNoNode) id = add(parent, tokens);
  if (at(id).device == kNoPage) set_device(id, page);
  return id;
}

NodeId RadixTree::insert_host(NodeId parent, std::span<const TokenId> tokens, HostPageId host_page) {
  NodeId id = child(parent, tokens);
  if (id == kNoNode) id = add(parent, tokens);
  if (at(id).host == kNoHostPage) set_host(id, host_page);
  return id;
}

void RadixTree::set_device(NodeId id, PageId page) {
  Node& node = at(id);
  Node& above = at(node.parent);
  CHECK(node.device == kNoPage, "node {} is on the device already", id.value());
  CHECK(above.device != kNoPage || above.salt != nullptr, "node {}'s parent is not on the device", id.value());
  node.device = page;
  ++above.device_children;
  ++device_page_count_;
  if (!node.is_pinned()) ++evictable_device_pages_;
  ++version_;
  refresh(id);
  refresh(node.parent);
}

void RadixTree::set_host(NodeId id, HostPageId page) {
  CHECK(at(id).host == kNoHostPage, "node {} is on the host already", id.value());
  at(id).host = page;
  ++host_page_count_;
  ++version_;
  refresh(id);
}

void RadixTree::count_evictable(const Node& node, bool was_pinned) {
  if (node.device == kNoPage || was_pinned == node.is_pinned()) return;
  if (was_pinned) {
    ++evictable_device_pages_;
  } else {
    --evictable_device_pages_;
  }
}

void RadixTree::change_locks(NodeId from, NodeId until, int change) {
  for (NodeId id = from; id != until; id = at(id).parent) {
    CHECK(id != kNoNode, "node {} is not below node {}", from.value(), until.value());
    Node& node = at(id);
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
  while (at(root).parent != kNoNode) root = at(root).parent;
  change_locks(node, kNoNode, -1);
  drop_root_if_unused(root);
}

void RadixTree::pin(NodeId id) {
  Node& node = at(id);
  CHECK(node.device != kNoPage, "node {} is pinned off the device", id.value());
  const bool was_pinned = node.is_pinned();
  ++node.pins;
  count_evictable(node, was_pinned);
  refresh(id);
}

void RadixTree::unpin(NodeId id) {
  Node& node = at(id);
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
  for (; at(id).parent != kNoNode && at(id).locks == 0; id = at(id).parent) count += at(id).is_pinned() ? 0 : 1;
  return count;
}

uint32_t RadixTree::exclusively_locked(NodeId id, NodeId other) const {
  uint32_t count = 0;
  for (; at(id).parent != kNoNode && at(id).locks == 1; id = at(id).parent) {
    while (other != kNoNode && at(other).depth > at(id).depth) other = at(other).parent;
    if (other == id) break;
    if (at(id).pins == 0) ++count;
  }
  return count;
}

void RadixTree::reorder(EvictionOrder& order, uint64_t& rank, NodeId id, bool member) {
  const uint64_t wanted = member ? at(id).used + 1 : 0;
  if (rank == wanted) return;
  if (rank != 0) order.erase({rank, at(id).depth, id});
  if (wanted != 0) order.insert({wanted, at(id).depth, id});
  rank = wanted;
}

void RadixTree::refresh(NodeId id) {
  Node& node = at(id);
  const bool free = !node.is_pinned() && node.salt == nullptr;
  reorder(device_order_, node.device_rank, id, free && node.device != kNoPage && node.device_children == 0);
  reorder(host_order_, node.host_rank, id,
          free && node.host != kNoHostPage && node.host_pins == 0 &&
              (node.device != kNoPage || node.first_child == kNoNode));
}

}  // namespace millrace::cache
