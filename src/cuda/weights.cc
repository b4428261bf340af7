#include "cuda/weights.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "base/check.h"
#include "cuda/error.h"

namespace millrace::cuda {
namespace {

/// Of one block of rows.
constexpr size_t kBlockBytes = 8 << 20;

SourceType source_type(tensor::DType dtype) {
  switch (dtype) {
    case tensor::DType::kF32: return SourceType::kF32;
    case tensor::DType::kBF16: return SourceType::kBF16;
    case tensor::DType::kF16: return SourceType::kF16;
  }
  return SourceType::kF32;
}

const DeviceWeight& device_weight(const tensor::PackedWeight& weight) {
  return static_cast<const CudaWeight&>(weight).get();
}

void check_matrix(const tensor::HostTensor& tensor) {
  CHECK(tensor.shape.rank() == 2, "{}: {} is not a matrix", tensor.name, tensor.shape.to_string());
  CHECK(tensor.shape[0] <= INT32_MAX && tensor.shape[1] <= INT32_MAX, "{}: {}", tensor.name, tensor.shape.to_string());
}

}  // namespace

void WeightLoader::stream_rows(const tensor::HostTensor& matrix, const UseRows& use) {
  const auto row_bytes = static_cast<size_t>(matrix.shape[1]) * tensor::size_of(matrix.dtype);
  if (row_bytes == 0) return;
  if (row_bytes > kBlockBytes) {
    throw std::runtime_error(
        fmt::format("{}: a row of {} bytes, wanted at most {}", matrix.name, row_bytes, kBlockBytes));
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
    CHECK(part.shape[1] == weight.in_features, "{}: {} beside rows of {}", part.name, part.shape.to_string(),
          weight.in_features);
    weight.out_features += static_cast<int32_t>(part.shape[0]);
  }
  const std::lock_guard lock(mutex_);
  device_.make_current();
  tensor::Buffer packed = allocate_device(
      device_.ordinal, packed_weight_bytes(weight.out_features, weight.in_features, false), device_.set_up);
  weight.data = packed.data();
  int64_t first_feature = 0;
  for (const tensor::HostTensor& part : parts) {
    pack_part(part, first_feature, PackAs::kRows, packed.data());
    first_feature += part.shape[0];
  }
  device_.set_up.synchronize();
  return std::make_unique<CudaWeight>(std::move(packed), weight);
}

std::unique_ptr<CudaWeight> WeightLoader::pack_gate_up(const tensor::HostTensor& gate, const tensor::HostTensor& up) {
  check_matrix(gate);
  CHECK(gate.shape == up.shape, "gate {} and up {} differ", gate.shape.to_string(), up.shape.to_string());
  DeviceWeight weight{.out_features = static_cast<int32_t>(gate.shape[0]),
                      .in_features = static_cast<int32_t>(gate.shape[1]),
                      .gate_up = true,
                      .by = device_.products};
  const std::lock_guard lock(mutex_);
  device_.make_current();
  tensor::Buffer packed = allocate_device(
      device_.ordinal, packed_weight_bytes(weight.out_features, weight.in_features, true), device_.set_up);
  weight.data = packed.data();
  pack_part(gate, 0, PackAs::kGate, packed.data());
  pack_part(up, 0, PackAs::kUp, packed.data());
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

tensor::Buffer WeightLoader::gather(std::vector<tensor::ExpertWeights>& experts, WeightOf which) {
  const DeviceWeight first = device_weight(*(experts.front().*which));
  const size_t bytes = packed_weight_bytes(first.out_features, first.in_features, first.gate_up);
  tensor::Buffer all = allocate_device(device_.ordinal, bytes * experts.size(), device_.set_up);
  for (size_t i = 0; i < experts.size(); ++i) {
    check(cudaMemcpyAsync(all.data() + i * bytes, device_weight(*(experts[i].*which)).data, bytes, cudaMemcpyDefault,
                          device_.set_up.get()),
          "cudaMemcpyAsync");
  }
  device_.set_up.synchronize();
  for (tensor::ExpertWeights& expert : experts) (expert.*which).reset();
  return all;
}

std::unique_ptr<CudaExperts> WeightLoader::load_experts(std::vector<tensor::ExpertWeights> weights,
                                                        const tensor::Routing& routing) {
  const auto count = static_cast<int32_t>(weights.size());
  CHECK(routing.experts_per_row >= 1 && routing.experts_per_row <= count, "{} of {} experts per row",
        routing.experts_per_row, count);
  if (count > kMostExperts) {
    throw std::runtime_error(fmt::format("CUDA: a mixture of {} experts, wanted at most {}", count, kMostExperts));
  }
  DeviceExperts experts{.count = count,
                        .per_row = routing.experts_per_row,
                        .renormalised = routing.renormalised,
                        .hidden = device_weight(*weights.front().gate_up).in_features,
                        .intermediate = device_weight(*weights.front().gate_up).out_features,
                        .by = device_.products};
  for (const tensor::ExpertWeights& expert : weights) {
    const DeviceWeight& gate_up = device_weight(*expert.gate_up);
    const DeviceWeight& down = device_weight(*expert.down);
    CHECK(gate_up.gate_up && !down.gate_up, "an expert has not a gate-up weight and another");
    CHECK(gate_up.out_features == experts.intermediate && gate_up.in_features == experts.hidden &&
              down.out_features == experts.hidden && down.in_features == experts.intermediate,
          "an expert makes {} features of {} and {} of {}, the first {} of {}", gate_up.out_features,
          gate_up.in_features, down.out_features, down.in_features, experts.intermediate, experts.hidden);
  }
  const std::lock_guard lock(mutex_);
  device_.make_current();
  tensor::Buffer gate_up = gather(weights, &tensor::ExpertWeights::gate_up);
  tensor::Buffer down = gather(weights, &tensor::ExpertWeights::down);
  experts.gate_up = gate_up.data();
  experts.down = down.data();
  return std::make_unique<CudaExperts>(std::move(gate_up), std::move(down), routing, experts);
}

}  // namespace millrace::cuda
