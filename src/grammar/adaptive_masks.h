#pragma once

#include <list>
#include <memory>
#include <unordered_map>

#include "grammar/adaptive_mask.h"
#include "grammar/adaptive_mask_walk.h"

namespace millrace::grammar {

/// The adaptive masks of a grammar: those computed, the last used first, and those under way. Owned by the grammar,
/// whose mutex guards it.
class AdaptiveMasks {
 public:
  /// Masks that were not used for the longest time are dropped while all take more.
  explicit AdaptiveMasks(size_t max_bytes) : max_bytes_(max_bytes) {}

  /// Returns the mask if it is known, else null.
  [[nodiscard]] std::shared_ptr<const AdaptiveTokenMask> find(AdaptiveMaskKey key);
  /// Returns the walk that computes the mask. All that want the same mask at a time continue the same walk.
  [[nodiscard]] std::shared_ptr<AdaptiveMaskWalk> walk_of(const Vocabulary& vocabulary, AdaptiveMaskKey key);
  /// Keeps a finished mask.
  std::shared_ptr<const AdaptiveTokenMask> add(AdaptiveMaskKey key, AdaptiveTokenMask mask);
  [[nodiscard]] size_t bytes() const { return bytes_; }

 private:
  struct Entry {
    AdaptiveMaskKey key;
    std::shared_ptr<const AdaptiveTokenMask> mask;
    size_t bytes;
  };
  [[nodiscard]] static uint64_t number_of(AdaptiveMaskKey key) { return uint64_t{key.state} << 32 | key.loop; }

  const size_t max_bytes_;
  std::list<Entry> entries_;
  std::unordered_map<uint64_t, std::list<Entry>::iterator> index_;
  std::unordered_map<uint64_t, std::weak_ptr<AdaptiveMaskWalk>> walks_;
  size_t bytes_ = 0;
};

}  // namespace millrace::grammar
