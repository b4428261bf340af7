#include "cache/node_keys.h"

#include "base/check.h"

namespace millrace::cache {

NodeKeys::NodeKeys(RadixTree& tree, uint32_t page_size, bool has_store)
    : tree_(tree), page_size_(page_size), has_store_(has_store) {}

NodeId NodeKeys::root(std::string_view salt) {
  const NodeId root = tree_.root(salt);
  if (has_store_) set(root, root_key(salt));
  return root;
}

void NodeKeys::set(NodeId node, const PageKey& key) {
  if (keys_.size() <= node.value()) keys_.resize(node.value() + 1);
  keys_[node.value()] = key;
}

void NodeKeys::set_computed(NodeId node, const PageTable& page_table, std::span<const TokenId> tokens) {
  if (!has_store_) return;
  const size_t index = size_t{page_table.indexed_pages} - page_table.first_key;
  const bool is_hashed = page_table.indexed_pages >= page_table.first_key && index < page_table.keys.size();
  set(node, is_hashed ? page_table.keys[index] : child_key(at(tree_.parent(node)), tokens));
}

std::vector<PageKey> NodeKeys::after(NodeId node, const PageTable& page_table, uint32_t first,
                                     std::span<const TokenId> tokens) const {
  const size_t count = tokens.size() / page_size_;
  if (page_table.first_key <= first && page_table.first_key + page_table.keys.size() >= first + count) {
    const auto begin = page_table.keys.begin() + (first - page_table.first_key);
    return {begin, begin + static_cast<std::ptrdiff_t>(count)};
  }
  std::vector<PageKey> keys;
  PageKey before = at(node);
  for (size_t i = 0; i < count; ++i) {
    before = child_key(before, tokens.subspan(i * page_size_, page_size_));
    keys.push_back(before);
  }
  return keys;
}

// A page under another one's key would come back from the store as that one.
void NodeKeys::check_path(NodeId node) const {
  if (!has_store_) return;
  for (; node != kNoNode && tree_.depth(node) > 0; node = tree_.parent(node)) {
    CHECK(at(node) == child_key(at(tree_.parent(node)), tree_.tokens(node)),
          "node {} at depth {} has the key of another page", node.value(), tree_.depth(node));
  }
}

}  // namespace millrace::cache
