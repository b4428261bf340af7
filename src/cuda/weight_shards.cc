#include "cuda/weight_shards.h"

#include <algorithm>
#include <cstddef>

#include "cuda/weight_layout.h"

namespace millrace::cuda {
namespace {

/// Returns `inputs` rounded up to whole steps of the packed matrix.
int32_t round_up_to_step(int32_t inputs) {
  return step_count(inputs) * kStepInputs;
}

}  // namespace

DeviceShards own_shards(const tensor::SumShards& shards) {
  static_assert(kMaxShards == tensor::kSumShards);
  DeviceShards own{.count = shards.position.shard_count()};
  for (int32_t s = 0; s <= own.count; ++s) {
    own.border[s] = static_cast<int32_t>(shards.border[static_cast<size_t>(shards.position.first_shard() + s)] -
                                         shards.owned().begin);
  }
  return own;
}

DeviceShards packed_shards(const DeviceShards& shards) {
  DeviceShards packed{.count = shards.count};
  for (int32_t s = 0; s < shards.count; ++s) {
    const int32_t inputs = shards.border[s + 1] - shards.border[s];
    packed.border[s + 1] = packed.border[s] + (s + 1 < shards.count ? round_up_to_step(inputs) : inputs);
  }
  return packed;
}

tensor::HostSlice spread_columns(const tensor::HostTensor& part, const DeviceShards& from, const DeviceShards& to) {
  const size_t size = tensor::size_of(part.dtype);
  const auto rows = static_cast<size_t>(part.shape[0]);
  const auto width = static_cast<size_t>(part.shape[1]) * size;
  const auto spread_width = static_cast<size_t>(to.border[to.count]) * size;
  tensor::HostSlice spread{.bytes = std::vector<std::byte>(rows * spread_width), .tensor = part};
  for (size_t row = 0; row < rows; ++row) {
    for (int32_t s = 0; s < from.count; ++s) {
      const auto begin = static_cast<size_t>(from.border[s]) * size;
      const auto end = static_cast<size_t>(from.border[s + 1]) * size;
      std::copy(part.data + row * width + begin, part.data + row * width + end,
                spread.bytes.data() + row * spread_width + static_cast<size_t>(to.border[s]) * size);
    }
  }
  spread.tensor.shape = {part.shape[0], to.border[to.count]};
  spread.tensor.data = spread.bytes.data();
  return spread;
}

std::vector<PackedColumns> packed_columns(const DeviceShards& from, const DeviceShards& to) {
  std::vector<PackedColumns> columns;
  for (int32_t s = 0; s < from.count; ++s)
    columns.push_back({.packed = to.border[s], .source = from.border[s], .count = from.border[s + 1] - from.border[s]});
  return columns;
}

}  // namespace millrace::cuda
