#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace millrace::grammar {

/// A map that is emptied in no time, for marks that many short searches need. Its memory grows with the largest search.
class StampedMap {
 public:
  void clear() {
    ++stamp_;
    size_ = 0;
  }
  /// Returns the value of a key, and whether the key is new. The value of a new key is `value`.
  std::pair<uint32_t, bool> try_emplace(uint64_t key, uint32_t value) {
    if (2 * (size_ + 1) > slots_.size()) grow();
    Slot& slot = slot_of(key);
    if (slot.stamp == stamp_) return {slot.value, false};
    slot = {key, stamp_, value};
    ++size_;
    return {value, true};
  }

 private:
  struct Slot {
    uint64_t key = 0;
    uint64_t stamp = 0;  // the slot is free unless it is stamp_
    uint32_t value = 0;
  };

  Slot& slot_of(uint64_t key) {
    const size_t mask = slots_.size() - 1;
    size_t at = (key * 0x9E3779B97F4A7C15ull) >> 32 & mask;
    while (slots_[at].stamp == stamp_ && slots_[at].key != key) at = (at + 1) & mask;
    return slots_[at];
  }
  void grow() {
    const std::vector<Slot> before = std::exchange(slots_, std::vector<Slot>(slots_.empty() ? 64 : 2 * slots_.size()));
    for (const Slot& slot : before) {
      if (slot.stamp == stamp_) slot_of(slot.key) = slot;
    }
  }

  std::vector<Slot> slots_;  // a power of two
  uint64_t stamp_ = 1;
  size_t size_ = 0;
};

}  // namespace millrace::grammar
