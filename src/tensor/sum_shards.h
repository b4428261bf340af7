#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace millrace::tensor {

/// The fixed number of shards of every sum that can be divided over ranks. Their partial sums are added in one binary
/// tree: ((0+1)+(2+3)) + ((4+5)+(6+7)). Rank r of T owns the shards [r·8/T, (r+1)·8/T), which are a subtree.
inline constexpr int32_t kSumShards = 8;

/// The position of a rank among the tensor-parallel ranks of its stage. `size` is 1, 2, 4 or 8.
struct RankPosition {
  int32_t rank = 0;
  int32_t size = 1;
  [[nodiscard]] int32_t first_shard() const { return rank * kSumShards / size; }
  [[nodiscard]] int32_t shard_count() const { return kSumShards / size; }
  friend bool operator==(const RankPosition&, const RankPosition&) = default;
};

/// Some consecutive terms of a sum.
struct TermRange {
  int64_t begin = 0;
  int64_t end = 0;
  [[nodiscard]] int64_t size() const { return end - begin; }
  friend bool operator==(const TermRange&, const TermRange&) = default;
};

/// The shards of a sum and those that one rank computes. Borders follow from the model's shape alone, never from the
/// count of ranks, so that all counts give the same bits. Shards of a small sum may be empty.
struct SumShards {
  std::array<int64_t, kSumShards + 1> border{};  ///< shard s sums the terms [border[s], border[s + 1])
  RankPosition position;

  /// Returns the terms of a shard of the whole sum.
  [[nodiscard]] TermRange shard(int32_t index) const {
    return {border[static_cast<size_t>(index)], border[static_cast<size_t>(index) + 1]};
  }
  /// Returns the terms of all shards of the rank.
  [[nodiscard]] TermRange owned() const {
    const int32_t first = position.first_shard();
    return {shard(first).begin, shard(first + position.shard_count() - 1).end};
  }
};

/// Returns the shards of a sum over the outputs of attention heads, in order. Borders lie between heads, at floor(s ·
/// heads / 8).
[[nodiscard]] SumShards head_shards(int64_t head_count, int64_t head_dim, RankPosition position);
/// Returns the shards of a sum over the features of a feed-forward block. Borders are the multiples of 64 at or below
/// s/8 of `width`; below 1024 features, multiples of 8.
[[nodiscard]] SumShards feature_shards(int64_t width, RankPosition position);
/// Returns the shards of a sum over experts: whole experts, with borders at floor(s · experts / 8).
[[nodiscard]] SumShards expert_shards(int64_t expert_count, RankPosition position);

}  // namespace millrace::tensor
