#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/hash.h"

namespace millrace::grammar {

/// A map that is emptied in no time, for marks that many short searches need. Its memory grows with the largest search,
/// one shard at a time, so that no insertion takes long.
class StampedMap {
 public:
  void clear() { ++stamp_; }
  /// Returns the value of a key, and whether the key is new. The value of a new key is `value`.
  std::pair<uint32_t, bool> try_emplace(uint64_t key, uint32_t value) {
    const uint64_t hash = hash_of(key);
    Shard& shard = shards_[hash >> kShift];
    if (std::exchange(shard.stamp, stamp_) != stamp_) shard.size = 0;
    if (2 * (shard.size + 1) > shard.slots.size()) grow(shard);
    Slot& slot = slot_of(shard.slots, key, hash);
    if (slot.stamp == stamp_) return {slot.value, false};
    slot = {key, stamp_, value};
    ++shard.size;
    return {value, true};
  }

 private:
  struct Slot {
    uint64_t key = 0;
    uint64_t stamp = 0;  // the slot is free unless it is stamp_
    uint32_t value = 0;
  };
  struct Shard {
    std::vector<Slot> slots;  // a power of two
    uint64_t stamp = 0;       // of the search that `size` counts
    size_t size = 0;
  };
  static constexpr int kShift = 60;

  [[nodiscard]] static uint64_t hash_of(uint64_t key) { return mix_bits(key); }
  Slot& slot_of(std::vector<Slot>& slots, uint64_t key, uint64_t hash) const {
    const size_t mask = slots.size() - 1;
    size_t at = hash >> 32 & mask;
    while (slots[at].stamp == stamp_ && slots[at].key != key) at = (at + 1) & mask;
    return slots[at];
  }
  void grow(Shard& shard) const {
    const size_t size = shard.slots.empty() ? 8 : 2 * shard.slots.size();
    const std::vector<Slot> before = std::exchange(shard.slots, std::vector<Slot>(size));
    for (const Slot& slot : before) {
      if (slot.stamp == stamp_) slot_of(shard.slots, slot.key, hash_of(slot.key)) = slot;
    }
  }

  std::array<Shard, 16> shards_;
  uint64_t stamp_ = 1;
};

}  // namespace millrace::grammar
