#include "tensor/sum_shards.h"

#include "base/check.h"

namespace millrace::tensor {
namespace {

/// Returns shards of `terms` terms with borders at multiples of `unit`.
SumShards shards_of(int64_t terms, int64_t unit, RankPosition position) {
  CHECK(position.size >= 1 && kSumShards % position.size == 0 && position.rank >= 0 && position.rank < position.size,
        "rank {} of {}", position.rank, position.size);
  SumShards shards{.border = {}, .position = position};
  for (int32_t shard = 0; shard < kSumShards; ++shard)
    shards.border[static_cast<size_t>(shard)] = shard * (terms / unit) / kSumShards * unit;
  shards.border.back() = terms;
  return shards;
}

}  // namespace

SumShards head_shards(int64_t head_count, int64_t head_dim, RankPosition position) {
  return shards_of(head_count * head_dim, head_dim, position);
}

SumShards feature_shards(int64_t width, RankPosition position) {
  constexpr int64_t kWide = 1024;
  return shards_of(width, width >= kWide ? 64 : 8, position);
}

SumShards expert_shards(int64_t expert_count, RankPosition position) {
  return shards_of(expert_count, 1, position);
}

}  // namespace millrace::tensor
