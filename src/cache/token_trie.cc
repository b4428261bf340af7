#include "cache/token_trie.h"

#include <algorithm>

#include "base/check.h"
#include "base/hash.h"

namespace millrace::cache {
namespace {

uint64_t hash_of_page(NodeId parent, std::span<const TokenId> tokens) {
  return hash_bytes(std::as_bytes(tokens)) ^ mix_bits(parent.value() + 1);
}

}  // namespace

TokenTrie::TokenTrie(uint32_t page_size) : page_size_(page_size) {
  CHECK(page_size > 0);
}

NodeId TokenTrie::find_root(std::string_view salt) const {
  const auto found = roots_.find(std::string(salt));
  return found == roots_.end() ? kNoNode : found->second;
}

// The first child is compared before the index is asked: most pages have one child only.
NodeId TokenTrie::child(NodeId parent, std::span<const TokenId> tokens) const {
  const NodeId first = at(parent).first_child;
  if (first == kNoNode) return kNoNode;
  if (std::ranges::equal(this->tokens(first), tokens)) return first;
  if (at(first).next_sibling == kNoNode) return kNoNode;
  const auto [begin, end] = by_hash_.equal_range(hash_of_page(parent, tokens));
  for (auto found = begin; found != end; ++found) {
    if (at(found->second).parent == parent && std::ranges::equal(this->tokens(found->second), tokens)) {
      return found->second;
    }
  }
  return kNoNode;
}

NodeId TokenTrie::allocate() {
  if (free_.empty()) {
    nodes_.emplace_back();
    tokens_.resize(tokens_.size() + page_size_);
    return NodeId(static_cast<uint32_t>(nodes_.size() - 1));
  }
  const NodeId id = free_.back();
  free_.pop_back();
  at(id) = {};
  return id;
}

NodeId TokenTrie::add_root(std::string_view salt) {
  const NodeId id = allocate();
  const auto [entry, is_new] = roots_.try_emplace(std::string(salt), id);
  CHECK(is_new, "the salt '{}' has a root already", salt);
  at(id).salt = &entry->first;
  return id;
}

NodeId TokenTrie::add(NodeId parent, std::span<const TokenId> tokens) {
  CHECK(tokens.size() == page_size_, "a page of {} tokens, wanted {}", tokens.size(), page_size_);
  const NodeId id = allocate();
  std::ranges::copy(tokens, tokens_.begin() + static_cast<std::ptrdiff_t>(size_t{id.value()} * page_size_));
  Node& node = at(id);
  Node& above = at(parent);
  node.parent = parent;
  node.depth = above.depth + 1;
  node.hash = hash_of_page(parent, tokens);
  node.next_sibling = above.first_child;
  if (above.first_child != kNoNode) at(above.first_child).previous_sibling = id;
  above.first_child = id;
  by_hash_.emplace(node.hash, id);
  return id;
}

void TokenTrie::remove(NodeId id) {
  const Node& node = at(id);
  CHECK(node.first_child == kNoNode && node.salt == nullptr, "node {} has children or is a root", id.value());
  const auto [begin, end] = by_hash_.equal_range(node.hash);
  by_hash_.erase(std::find_if(begin, end, [id](const auto& entry) { return entry.second == id; }));
  if (node.previous_sibling == kNoNode) {
    at(node.parent).first_child = node.next_sibling;
  } else {
    at(node.previous_sibling).next_sibling = node.next_sibling;
  }
  if (node.next_sibling != kNoNode) at(node.next_sibling).previous_sibling = node.previous_sibling;
  free_.push_back(id);
}

void TokenTrie::remove_root(NodeId id) {
  const Node& node = at(id);
  CHECK(node.salt != nullptr && node.first_child == kNoNode, "node {} is no root, or has children", id.value());
  roots_.erase(roots_.find(*node.salt));
  at(id).salt = nullptr;
  free_.push_back(id);
}

void TokenTrie::clear() {
  nodes_.clear();
  tokens_.clear();
  free_.clear();
  roots_.clear();
  by_hash_.clear();
}

std::vector<NodeId> TokenTrie::roots() const {
  std::vector<NodeId> roots;
  for (const auto& [salt, root] : roots_) roots.push_back(root);
  return roots;
}

void TokenTrie::check_invariants() const {
  size_t reachable = 0;
  for (const auto& [salt, root] : roots_) {
    CHECK(*at(root).salt == salt && at(root).parent == kNoNode && at(root).depth == 0);
  }
  std::vector<NodeId> pending = roots();
  while (!pending.empty()) {
    const NodeId id = pending.back();
    pending.pop_back();
    ++reachable;
    for (NodeId below = first_child(id); below != kNoNode; below = next_sibling(below)) {
      CHECK(at(below).parent == id && at(below).depth == at(id).depth + 1, "node {} below {}", below.value(),
            id.value());
      CHECK(at(below).hash == hash_of_page(id, tokens(below)), "node {} has another page's hash", below.value());
      pending.push_back(below);
    }
  }
  CHECK(reachable == nodes_.size() - free_.size(), "{} nodes reachable, {} in use", reachable,
        nodes_.size() - free_.size());
  CHECK(by_hash_.size() == page_count(), "{} pages in the index, {} in the tree", by_hash_.size(), page_count());
}

}  // namespace millrace::cache
