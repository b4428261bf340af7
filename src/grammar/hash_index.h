#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <unordered_map>

namespace millrace::grammar {

/// Finds ids by the hash of what they stand for. It grows one shard at a time, so that no insertion takes long. Owned
/// by the container of what the ids stand for.
template <class Id>
class HashIndex {
 public:
  /// Returns the id with that hash for which `equals` is true.
  template <class Equals>
  [[nodiscard]] std::optional<Id> find(uint64_t hash, const Equals& equals) const {
    const auto [first, last] = shards_[hash >> kShift].equal_range(hash);
    for (auto at = first; at != last; ++at) {
      if (equals(at->second)) return at->second;
    }
    return std::nullopt;
  }
  void add(uint64_t hash, Id id) { shards_[hash >> kShift].emplace(hash, id); }

  /// The approximate memory use of one id.
  static constexpr size_t kBytesPerId = 48;

 private:
  static constexpr int kShift = 58;
  std::array<std::unordered_multimap<uint64_t, Id>, 64> shards_;
};

}  // namespace millrace::grammar
