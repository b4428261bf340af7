#include "cache/eviction_order.h"

namespace millrace::cache {

void EvictionOrder::insert(NodeId id, uint64_t used, uint32_t depth) {
  if (keys_.size() <= id.value()) keys_.resize(id.value() + 1);
  Key& key = keys_[id.value()];
  const Key wanted{used + 1, depth, id};
  if (key.rank == wanted.rank && key.depth == wanted.depth) return;
  if (key.rank != 0) members_.erase(key);
  key = wanted;
  members_.insert(key);
}

void EvictionOrder::erase(NodeId id) {
  if (keys_.size() <= id.value() || keys_[id.value()].rank == 0) return;
  members_.erase(keys_[id.value()]);
  keys_[id.value()].rank = 0;
}

void EvictionOrder::clear() {
  members_.clear();
  keys_.clear();
}

}  // namespace millrace::cache
