#include "cuda/weights.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "base/check.h"
#include "cuda/error.h"
#include "tensor/slices.h"

namespace millrace::cuda {
namespace {

/// Bytes of one block of rows.
constexpr size_t kBlockBytes = 8 << 20;

SourceType source_type(tensor::DType dtype) {
  switch (dtype) {
    case tensor::DType::kF32: return SourceType::kF32;
    case tensor::DType::kBF16: return SourceType::kBF16;
    case tensor::DType::kF16: return SourceType::kF16;
  }
  return SourceType::kF32;
}

size_t bytes_of(const DeviceWeight& weight) {
  return packed_weight_bytes(weight.out_features, weight.in_features, weight.gate_up);
}

void check_matrix(const tensor::HostTensor& tensor) {
  CHECK(tensor.shape.rank() == 2, "{}: {} is not a matrix", tensor.name, tensor.shape.to_string());
  CHECK(tensor.shape[0] <= INT32_MAX && tensor.shape[1] <= INT32_MAX, "{}: {}", tensor.name, tensor.shape.to_string());
}

void check_pair(const tensor::HostTensor& gate, const tensor::HostTensor& up) {
  check_matrix(gate);
  CHECK(gate.shape == up.shape, "gate {} and up {} differ", gate.shape.to_string(), up.shape.to_string());
}

/// Returns `inputs` rounded up to whole steps of the packed matrix.
int32_t round_up_to_step(int32_t inputs) {
  constexpr int32_t kStep = 64;
  return (inputs + kStep - 1) / kStep * kStep;
}

/// Returns a rank's shards as ranges of its own terms.
DeviceShards own_shards(const tensor::SumShards& shards) {
  static_assert(kMaxShards == tensor::kSumShards);
  DeviceShards own{.count = shards.position.shard_count()};
  for (int32_t s = 0; s <= own.count; ++s) {
    own.border[s] = static_cast<int32_t>(shards.border[static_cast<size_t>(shards.position.first_shard() + s)] -
                                         shards.owned().begin);
  }
  return own;
}

/// Returns the columns of the packed matrix that the shards of x become: each begins with a step.
DeviceShards packed_shards(const DeviceShards& shards) {
  DeviceShards packed{.count = shards.count};
  for (int32_t s = 0; s < shards.count; ++s) {
    const int32_t inputs = shards.border[s + 1] - shards.border[s];
    packed.border[s + 1] = packed.border[s] + (s + 1 < shards.count ? round_up_to_step(inputs) : inputs);
  }
  return packed;
}

/// Returns a matrix whose columns are those of `part`, with zeros before shards that begin inside a step.
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

}  // namespace

void WeightLoader::stream_rows(const tensor::HostTensor& matrix, const UseRows& use) {
  const auto row_bytes = static_cast<size_t>(matrix.shape[1]) * tensor::size_of(matrix.dtype);
  if (row_bytes == 0) return;
  if (row_bytes > kBlockBytes) {
    throw std::runtime_error(
        fmt::format("{}: a row has {} bytes, wanted at most {}", matrix.name, row_bytes, kBlockBytes));
  }
  const auto rows_per_block = static_cast<int64_t>(kBlockBytes / row_bytes);
  const cudaStream_t stream = device_.set_up.get();
  for (int64_t first = 0; first < matrix.shape[0]; first += rows_per_block) {
    const int64_t count = std::min(rows_per_block, matrix.shape[0] - first);
    const size_t bytes = static_cast<size_t>(count) * row_bytes;
    Block& block = blocks_[next_block_++ % blocks_.size()];
    if (block.pinned.bytes() == 0) {
      block.pinned = allocate_pinned(kBlockBytes);
      block.on_device = allocate_device(device_.ordinal, kBlockBytes, device_.set_up);
    } else {
      check(cudaEventSynchronize(block.free.get()), "cudaEventSynchronize");
    }
    std::memcpy(block.pinned.data(), matrix.data + static_cast<size_t>(first) * row_bytes, bytes);
    check(cudaMemcpyAsync(block.on_device.data(), block.pinned.data(), bytes, cudaMemcpyDefault, stream),
          "cudaMemcpyAsync");
    use(block.on_device.data(), first, count);
    block.free.record(device_.set_up);
  }
}

void WeightLoader::pack_part(const tensor::HostTensor& part, int64_t first_feature, PackAs as, std::byte* packed) {
  stream_rows(part, [&](const std::byte* rows, int64_t first, int64_t count) {
    pack_weight(device_.set_up.get(), rows, source_type(part.dtype), static_cast<int32_t>(count),
                static_cast<int32_t>(part.shape[1]), static_cast<int32_t>(first_feature + first), as, packed);
  });
}

void WeightLoader::pack_both(const tensor::HostTensor& gate, const tensor::HostTensor& up, std::byte* packed) {
  pack_part(gate, 0, PackAs::kGate, packed);
  pack_part(up, 0, PackAs::kUp, packed);
}

tensor::Buffer WeightLoader::allocate_packed(const DeviceWeight& weight, int64_t count) {
  return allocate_device(device_.ordinal, static_cast<size_t>(count) * bytes_of(weight), device_.set_up);
}

std::unique_ptr<CudaVector> WeightLoader::load_vector(std::span<const float> values) {
  const std::lock_guard lock(mutex_);
  device_.make_current();
  tensor::Buffer buffer = allocate_device(device_.ordinal, values.size_bytes(), device_.set_up);
  if (!values.empty()) {
    check(cudaMemcpyAsync(buffer.data(), values.data(), values.size_bytes(), cudaMemcpyDefault, device_.set_up.get()),
          "cudaMemcpyAsync");
    device_.set_up.synchronize();
  }
  return std::make_unique<CudaVector>(std::move(buffer), static_cast<int64_t>(values.size()));
}

std::unique_ptr<CudaWeight> WeightLoader::pack(std::span<const tensor::HostTensor> parts) {
  CHECK(!parts.empty(), "a weight without parts");
  DeviceWeight weight{.in_features = static_cast<int32_t>(parts.front().shape[1]), .by = device_.products};
  for (const tensor::HostTensor& part : parts) {
    check_matrix(part);
    CHECK(part.shape[1] == weight.in_features, "{}: {} with rows of {}", part.name, part.shape.to_string(),
          weight.in_features);
    weight.out_features += static_cast<int32_t>(part.shape[0]);
  }
  const std::lock_guard lock(mutex_);
  device_.make_current();
  tensor::Buffer packed = allocate_packed(weight, 1);
  weight.data = packed.data();
  int64_t first_feature = 0;
  for (const tensor::HostTensor& part : parts) {
    pack_part(part, first_feature, PackAs::kRows, packed.data());
    first_feature += part.shape[0];
  }
  device_.set_up.synchronize();
  return std::make_unique<CudaWeight>(std::move(packed), weight);
}

std::unique_ptr<CudaWeight> WeightLoader::pack_sharded(const tensor::HostTensor& part,
                                                       const tensor::SumShards& shards) {
  check_matrix(part);
  CHECK(part.shape[1] == shards.owned().size(), "{}: {} columns for shards of {}", part.name, part.shape[1],
        shards.owned().size());
  const DeviceShards source = own_shards(shards);
  DeviceWeight weight{
      .out_features = static_cast<int32_t>(part.shape[0]), .by = device_.products, .shards = packed_shards(source)};
  weight.in_features = weight.shards.border[source.count];
  const bool spreads = weight.in_features != source.border[source.count];
  const tensor::HostSlice spread = spreads ? spread_columns(part, source, weight.shards) : tensor::HostSlice{};
  const std::lock_guard lock(mutex_);
  device_.make_current();
  tensor::Buffer packed = allocate_packed(weight, 1);
  weight.data = packed.data();
  pack_part(spreads ? spread.tensor : part, 0, PackAs::kRows, packed.data());
  device_.set_up.synchronize();
  return std::make_unique<CudaWeight>(std::move(packed), weight, source);
}

std::unique_ptr<CudaWeight> WeightLoader::pack_gate_up(const tensor::HostTensor& gate, const tensor::HostTensor& up) {
  check_pair(gate, up);
  DeviceWeight weight{.out_features = static_cast<int32_t>(gate.shape[0]),
                      .in_features = static_cast<int32_t>(gate.shape[1]),
                      .gate_up = true,
                      .by = device_.products};
  const std::lock_guard lock(mutex_);
  device_.make_current();
  tensor::Buffer packed = allocate_packed(weight, 1);
  weight.data = packed.data();
  pack_both(gate, up, packed.data());
  device_.set_up.synchronize();
  return std::make_unique<CudaWeight>(std::move(packed), weight);
}

std::unique_ptr<CudaEmbedding> WeightLoader::load_embedding(const tensor::HostTensor& table) {
  check_matrix(table);
  const int64_t width = table.shape[1];
  const std::lock_guard lock(mutex_);
  device_.make_current();
  tensor::Buffer buffer =
      allocate_device(device_.ordinal, static_cast<size_t>(table.shape.elements()) * 2, device_.set_up);
  stream_rows(table, [&](const std::byte* rows, int64_t first, int64_t count) {
    convert_to_bf16(device_.set_up.get(), rows, source_type(table.dtype), static_cast<size_t>(count * width),
                    buffer.data() + first * width * 2);
  });
  device_.set_up.synchronize();
  return std::make_unique<CudaEmbedding>(std::move(buffer), table.shape[0], width);
}

/// Packs a rank's experts of a layer into their slots of two allocations.
class WeightLoader::ExpertPacker final : public tensor::ExpertPacker {
 public:
  ExpertPacker(WeightLoader& loader, int32_t count, const tensor::Routing& routing, tensor::RankPosition position)
      : loader_(loader), routing_(routing) {
    const tensor::SumShards shards = tensor::expert_shards(count, position);
    experts_.shards.count = position.shard_count();
    for (int32_t s = 0; s <= experts_.shards.count; ++s) {
      experts_.shards.border[s] = static_cast<int32_t>(shards.border[static_cast<size_t>(position.first_shard() + s)]);
    }
    CHECK(own_count() > 0, "rank {} of {} has none of {} experts", position.rank, position.size, count);
    experts_.count = count;
    experts_.per_row = routing.experts_per_row;
    experts_.renormalize = routing.renormalize;
    experts_.by = loader.device_.products;
  }
  void add(const tensor::HostTensor& gate, const tensor::HostTensor& up, const tensor::HostTensor& down) override;
  std::unique_ptr<tensor::Experts> finish() override;

 private:
  [[nodiscard]] int32_t own_count() const { return experts_.end() - experts_.first(); }
  [[nodiscard]] DeviceWeight gate_up_weight() const {
    return {.out_features = experts_.intermediate, .in_features = experts_.hidden, .gate_up = true};
  }
  [[nodiscard]] DeviceWeight down_weight() const {
    return {.out_features = experts_.hidden, .in_features = experts_.intermediate};
  }

  WeightLoader& loader_;
  const tensor::Routing routing_;
  DeviceExperts experts_;
  int32_t added_ = 0;
  tensor::Buffer gate_up_;  // [own_count()] packed weights
  tensor::Buffer down_;     // [own_count()] packed weights
};

void WeightLoader::ExpertPacker::add(const tensor::HostTensor& gate, const tensor::HostTensor& up,
                                     const tensor::HostTensor& down) {
  check_pair(gate, up);
  check_matrix(down);
  CHECK(added_ < own_count(), "more experts than {}", own_count());
  const std::lock_guard lock(loader_.mutex_);
  loader_.device_.make_current();
  if (added_ == 0) {
    experts_.intermediate = static_cast<int32_t>(gate.shape[0]);
    experts_.hidden = static_cast<int32_t>(gate.shape[1]);
    gate_up_ = loader_.allocate_packed(gate_up_weight(), own_count());
    down_ = loader_.allocate_packed(down_weight(), own_count());
  }
  CHECK(gate.shape[0] == experts_.intermediate && gate.shape[1] == experts_.hidden &&
            down.shape[0] == experts_.hidden && down.shape[1] == experts_.intermediate,
        "expert {}: gate {} and down {}, wanted {} features of {} and back", added_, gate.shape.to_string(),
        down.shape.to_string(), experts_.intermediate, experts_.hidden);
  const auto at = static_cast<size_t>(added_++);
  loader_.pack_both(gate, up, gate_up_.data() + at * bytes_of(gate_up_weight()));
  loader_.pack_part(down, 0, PackAs::kRows, down_.data() + at * bytes_of(down_weight()));
}

std::unique_ptr<tensor::Experts> WeightLoader::ExpertPacker::finish() {
  CHECK(added_ == own_count(), "{} experts were added, wanted {}", added_, own_count());
  loader_.device_.make_current();
  loader_.device_.set_up.synchronize();
  experts_.gate_up = gate_up_.data();
  experts_.down = down_.data();
  return std::make_unique<CudaExperts>(std::move(gate_up_), std::move(down_), routing_, experts_);
}

std::unique_ptr<tensor::ExpertPacker> WeightLoader::pack_experts(int32_t count, const tensor::Routing& routing,
                                                                 tensor::RankPosition position) {
  CHECK(routing.experts_per_row >= 1 && routing.experts_per_row <= count, "{} of {} experts per row",
        routing.experts_per_row, count);
  if (count > kMaxExperts) {
    throw std::runtime_error(fmt::format("CUDA: a layer has {} experts, wanted at most {}", count, kMaxExperts));
  }
  return std::make_unique<ExpertPacker>(*this, count, routing, position);
}

}  // namespace millrace::cuda
