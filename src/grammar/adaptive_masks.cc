#include "grammar/adaptive_masks.h"

#include <utility>

namespace millrace::grammar {
namespace {

size_t bytes_of(const AdaptiveTokenMask& mask) {
  return sizeof mask + mask.accepted_ids.size() * sizeof(TokenId) + mask.runs.size() +
         mask.context_dependent.size() * sizeof(AdaptiveTokenMask::NodeRange) +
         (mask.accepted_mask == nullptr ? 0 : mask.accepted_mask->words().size_bytes());
}

}  // namespace

std::shared_ptr<const AdaptiveTokenMask> AdaptiveMasks::find(AdaptiveMaskKey key) {
  const auto found = index_.find(number_of(key));
  if (found == index_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->mask;
}

std::shared_ptr<AdaptiveMaskWalk> AdaptiveMasks::walk_of(const Vocabulary& vocabulary, AdaptiveMaskKey key) {
  std::weak_ptr<AdaptiveMaskWalk>& known = walks_[number_of(key)];
  std::shared_ptr<AdaptiveMaskWalk> walk = known.lock();
  if (walk == nullptr) known = walk = std::make_shared<AdaptiveMaskWalk>(vocabulary, key);
  return walk;
}

std::shared_ptr<const AdaptiveTokenMask> AdaptiveMasks::add(AdaptiveMaskKey key, AdaptiveTokenMask mask) {
  walks_.erase(number_of(key));
  std::erase_if(walks_, [](const auto& one) { return one.second.expired(); });
  const size_t bytes = bytes_of(mask);
  entries_.push_front({key, std::make_shared<const AdaptiveTokenMask>(std::move(mask)), bytes});
  index_[number_of(key)] = entries_.begin();
  bytes_ += bytes;
  while (bytes_ > max_bytes_ && entries_.size() > 1) {
    bytes_ -= entries_.back().bytes;
    index_.erase(number_of(entries_.back().key));
    entries_.pop_back();
  }
  return entries_.front().mask;
}

}  // namespace millrace::grammar
