#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace millrace::grammar {

/// Finds ids by the hash of what they stand for. It grows one shard at a time, so that no insertion takes long. Owned
/// by the container of what the ids stand for.
template <class Id>
class HashIndex {
 public:
  /// Returns the id with that hash for which `equals` is true.
  template <class Equals>
  [[nodiscard]] std::optional<Id> find(uint64_t hash, const Equals& equals) const {
    const std::vector<Slot>& slots = shards_[hash >> kShift].slots;
    if (slots.empty()) return std::nullopt;
    const size_t mask = slots.size() - 1;
    for (size_t at = hash & mask; slots[at].is_used; at = (at + 1) & mask) {
      if (slots[at].hash == hash && equals(slots[at].id)) return slots[at].id;
    }
    return std::nullopt;
  }
  void add(uint64_t hash, Id id) {
    Shard& shard = shards_[hash >> kShift];
    if (2 * (shard.size + 1) > shard.slots.size()) grow(shard);
    insert(shard.slots, {hash, id, true});
    ++shard.size;
  }

  /// The approximate memory use of one id.
  static constexpr size_t kBytesPerId = 48;

 private:
  struct Slot {
    uint64_t hash = 0;
    Id id{};
    bool is_used = false;
  };
  struct Shard {
    std::vector<Slot> slots;  // a power of two, at most half of them used
    size_t size = 0;
  };
  static constexpr int kShift = 58;

  static void insert(std::vector<Slot>& slots, const Slot& slot) {
    const size_t mask = slots.size() - 1;
    size_t at = slot.hash & mask;
    while (slots[at].is_used) at = (at + 1) & mask;
    slots[at] = slot;
  }
  static void grow(Shard& shard) {
    const size_t size = shard.slots.empty() ? 4 : 2 * shard.slots.size();
    const std::vector<Slot> before = std::exchange(shard.slots, std::vector<Slot>(size));
    for (const Slot& slot : before) {
      if (slot.is_used) insert(shard.slots, slot);
    }
  }

  std::array<Shard, 64> shards_;
};

}  // namespace millrace::grammar
