#include "cuda/weights.h"

#include <algorithm>
#include <cstring>
#include <ranges>
#include <stdexcept>

#include "base/check.h"
#include "base/parallel_for.h"
#include "cuda/device_routing.h"
#include "cuda/error.h"
#include "cuda/weight_layout.h"
#include "cuda/weight_shards.h"
#include "tensor/slices.h"

namespace millrace::cuda {
namespace {

constexpr WeightFormat kFp8Products{.codes = WeightCodes::kE4M3Both, .scales = CodeScales::kF32};
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
  if (weight.format.codes != WeightCodes::kBf16) return coded_weight_bytes(weight);
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

}  // namespace

void WeightLoader::pack_panels(const CodedWeight& weight, std::byte* packed) {
  const size_t panel_bytes = coded_panel_bytes(weight.weight);
  if (panel_bytes > kBlockBytes) {
    throw std::runtime_error(fmt::format("{}: 64 packed rows have {} bytes, wanted at most {}",
                                         weight.parts.front().name(), panel_bytes, kBlockBytes));
  }
  if (panel_bytes == 0) return;
  const int32_t panels = panel_count(weight.weight.out_features, weight.weight.gate_up);
  const auto panels_per_block = static_cast<int32_t>(kBlockBytes / panel_bytes);
  for (int32_t first = 0; first < panels; first += panels_per_block) {
    const int32_t count = std::min(panels_per_block, panels - first);
    std::byte* const pinned = next_block().pinned.data();
    std::memset(pinned, 0, static_cast<size_t>(count) * panel_bytes);
    parallel_for({.count = count, .thread_name = "pack"}, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        weight.pack_panel(first + static_cast<int32_t>(i), pinned + static_cast<size_t>(i) * panel_bytes);
    });
    check(cudaMemcpyAsync(packed + static_cast<size_t>(first) * panel_bytes, pinned,
                          static_cast<size_t>(count) * panel_bytes, cudaMemcpyDefault, device_.set_up.get()),
          "cudaMemcpyAsync");
    current_block().free.record(device_.set_up);
  }
}

WeightLoader::Block& WeightLoader::next_block() {
  block_ = (block_ + 1) % blocks_.size();
  Block& block = current_block();
  if (block.pinned.bytes() == 0) {
    block.pinned = allocate_pinned(kBlockBytes);
    block.on_device = allocate_device(device_.ordinal, kBlockBytes, device_.set_up);
  } else {
    check(cudaEventSynchronize(block.free.get()), "cudaEventSynchronize");
  }
  return block;
}

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
    Block& block = next_block();
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

tensor::Buffer WeightLoader::load_floats(std::span<const float> values) {
  device_.make_current();
  tensor::Buffer buffer = allocate_device(device_.ordinal, values.size_bytes(), device_.set_up);
  if (values.empty()) return buffer;
  check(cudaMemcpyAsync(buffer.data(), values.data(), values.size_bytes(), cudaMemcpyDefault, device_.set_up.get()),
        "cudaMemcpyAsync");
  device_.set_up.synchronize();
  return buffer;
}

std::unique_ptr<CudaVector> WeightLoader::load_vector(std::span<const float> values) {
  const std::lock_guard lock(mutex_);
  return std::make_unique<CudaVector>(load_floats(values), static_cast<int64_t>(values.size()));
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

tensor::Buffer WeightLoader::pack_each(std::span<const tensor::HostTensor> matrices) {
  const tensor::Shape& shape = matrices.front().shape;
  const DeviceWeight weight{.out_features = static_cast<int32_t>(shape[0]),
                            .in_features = static_cast<int32_t>(shape[1])};
  const std::lock_guard lock(mutex_);
  device_.make_current();
  tensor::Buffer packed = allocate_packed(weight, std::ssize(matrices));
  std::byte* to = packed.data();
  for (const tensor::HostTensor& matrix : matrices) {
    CHECK(matrix.shape == shape, "{}: {}, wanted {}", matrix.name, matrix.shape.to_string(), shape.to_string());
    pack_part(matrix, 0, PackAs::kRows, to);
    to += bytes_of(weight);
  }
  device_.set_up.synchronize();
  return packed;
}

std::unique_ptr<CudaWeight> WeightLoader::pack_f32(const tensor::HostTensor& weight) {
  check_matrix(weight);
  std::vector<float> values(static_cast<size_t>(weight.shape.elements()));
  tensor::read_floats(weight, 0, weight.shape.elements(), values.data());
  DeviceWeight rows{.out_features = static_cast<int32_t>(weight.shape[0]),
                    .in_features = static_cast<int32_t>(weight.shape[1]),
                    .is_f32 = true};
  const std::lock_guard lock(mutex_);
  tensor::Buffer buffer = load_floats(values);
  rows.data = buffer.data();
  return std::make_unique<CudaWeight>(std::move(buffer), rows);
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

std::unique_ptr<CudaWeight> WeightLoader::load_coded(CodedWeight coded, const DeviceShards& source) {
  const std::lock_guard lock(mutex_);
  device_.make_current();
  tensor::Buffer packed = allocate_packed(coded.weight, 1);
  pack_panels(coded, packed.data());
  device_.set_up.synchronize();
  coded.weight.data = packed.data();
  return std::make_unique<CudaWeight>(std::move(packed), coded.weight, source);
}

std::unique_ptr<CudaWeight> WeightLoader::pack_coded(std::vector<CodedPart> parts, bool gate_up) {
  CodedWeight coded = coded_weight(std::move(parts), gate_up, device_.products);
  if (device_.fp8_products && can_multiply_fp8(coded.parts, coded.columns)) coded.weight.format = kFp8Products;
  return load_coded(std::move(coded));
}

std::unique_ptr<CudaWeight> WeightLoader::pack_codes(std::span<const tensor::CodeMatrix> parts) {
  CHECK(!parts.empty(), "a weight without parts");
  std::vector<CodedWeight> kinds = coded_stack(parts, device_.products);
  std::unique_ptr<CudaWeight> weight;
  for (CodedWeight& kind : kinds | std::views::reverse) {
    std::unique_ptr<CudaWeight> own = load_coded(std::move(kind));
    own->set_rest(std::move(weight));
    weight = std::move(own);
  }
  return weight;
}

std::unique_ptr<CudaWeight> WeightLoader::pack_sharded_coded(const CodedPart& part, const tensor::SumShards& shards) {
  check_coded(part, shards.owned().size());
  const DeviceShards source = own_shards(shards);
  const DeviceShards spread = packed_shards(source);
  CodedWeight coded{.parts = {part}, .columns = packed_columns(source, spread), .weight = {}};
  if (!can_pack(part, coded.columns)) {
    const std::vector<tensor::BFloat16> weights = part.dequantized();
    return pack_sharded({.name = part.name(),
                         .dtype = tensor::DType::kBF16,
                         .shape = {part.rows(), part.cols()},
                         .data = reinterpret_cast<const std::byte*>(weights.data())},
                        shards);
  }
  coded.weight = {.out_features = static_cast<int32_t>(part.rows()),
                  .in_features = spread.border[spread.count],
                  .by = device_.products,
                  .shards = spread,
                  .format = format_of(coded.parts, coded.columns)};
  // All shards count, not only those of the rank, so that every count of ranks gives the same bits.
  const bool has_whole_steps =
      std::ranges::all_of(shards.border, [](int64_t border) { return border % kFp8StepInputs == 0; });
  if (device_.fp8_products && has_whole_steps && can_multiply_fp8(coded.parts, coded.columns))
    coded.weight.format = kFp8Products;
  return load_coded(std::move(coded), source);
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
  ExpertPacker(WeightLoader& loader, int32_t count, const tensor::ExpertOptions& options, tensor::RankPosition position)
      : loader_(loader), options_(options) {
    const tensor::SumShards shards = tensor::expert_shards(count, position);
    experts_.shards.count = position.shard_count();
    for (int32_t s = 0; s <= experts_.shards.count; ++s) {
      experts_.shards.border[s] = static_cast<int32_t>(shards.border[static_cast<size_t>(position.first_shard() + s)]);
    }
    CHECK(own_count() > 0, "rank {} of {} has none of {} experts", position.rank, position.size, count);
    experts_.count = count;
    experts_.per_row = options.routing.experts_per_row;
    experts_.renormalize = options.routing.renormalize;
    experts_.weighs_inputs = options.routing.weighs_inputs;
    experts_.gated = options.gated;
    experts_.routing = device_routing(options.routing);
    experts_.activation = options.activation;
    experts_.by = loader.device_.products;
  }
  void add(const tensor::HostTensor& gate, const tensor::HostTensor& up, const tensor::HostTensor& down) override;
  void add_codes(const tensor::CodeMatrix& gate, const tensor::CodeMatrix& up,
                 const tensor::CodeMatrix& down) override {
    add_coded(gate_and_up(gate, up), CodedPart(down));
  }
  void add_w8(const tensor::W8Matrix& gate, const tensor::W8Matrix& up, const tensor::W8Matrix& down,
              tensor::W8Activations inputs) override {
    CHECK(inputs == tensor::W8Activations::kUnquantized, "{}: a GPU does not quantize inputs", up.name);
    add_coded(gate_and_up(gate, up), CodedPart(down));
  }
  void add_fp8(const tensor::Fp8Matrix& gate, const tensor::Fp8Matrix& up, const tensor::Fp8Matrix& down) override {
    add_coded(gate_and_up(gate, up), CodedPart(down));
  }
  void add_biases(const tensor::ExpertBiases& biases) override;
  std::unique_ptr<tensor::Experts> finish() override;

 private:
  [[nodiscard]] int32_t own_count() const { return experts_.end() - experts_.first(); }
  [[nodiscard]] DeviceWeight gate_up_weight() const {
    return {.out_features = experts_.intermediate,
            .in_features = experts_.hidden,
            .gate_up = experts_.gated,
            .format = experts_.gate_up_format};
  }
  [[nodiscard]] DeviceWeight down_weight() const {
    return {.out_features = experts_.hidden, .in_features = experts_.intermediate, .format = experts_.down_format};
  }
  /// Returns the parts of the first weight: without gates up alone.
  template <class Stored>
  [[nodiscard]] std::vector<CodedPart> gate_and_up(const Stored& gate, const Stored& up) const {
    if (!experts_.gated) return {CodedPart(up)};
    return {CodedPart(gate), CodedPart(up)};
  }
  void add_coded(std::vector<CodedPart> gate_up, const CodedPart& down);
  /// Allocates the weights with the first expert, of whose sizes and formats all are. Returns the number of the expert.
  size_t count_expert(const DeviceWeight& gate_up, const DeviceWeight& down, const std::string& name);

  WeightLoader& loader_;
  const tensor::ExpertOptions options_;
  DeviceExperts experts_;
  int32_t added_ = 0;
  int32_t added_biases_ = 0;
  std::vector<float> gate_up_biases_;  // [added_biases_][gate | up][intermediate]
  std::vector<float> down_biases_;     // [added_biases_][hidden]
  tensor::Buffer gate_up_;             // [own_count()] packed weights
  tensor::Buffer down_;                // [own_count()] packed weights
};

size_t WeightLoader::ExpertPacker::count_expert(const DeviceWeight& gate_up, const DeviceWeight& down,
                                                const std::string& name) {
  CHECK(added_ < own_count(), "more experts than {}", own_count());
  loader_.device_.make_current();
  if (added_ == 0) {
    experts_.intermediate = gate_up.out_features;
    experts_.hidden = gate_up.in_features;
    experts_.gate_up_format = gate_up.format;
    experts_.down_format = down.format;
    gate_up_ = loader_.allocate_packed(gate_up_weight(), own_count());
    down_ = loader_.allocate_packed(down_weight(), own_count());
  }
  CHECK(gate_up.out_features == experts_.intermediate && gate_up.in_features == experts_.hidden &&
            down.out_features == experts_.hidden && down.in_features == experts_.intermediate,
        "{}: expert {} has {} features of {}, then {} of {}, wanted {} features of {} and back", name, added_,
        gate_up.out_features, gate_up.in_features, down.out_features, down.in_features, experts_.intermediate,
        experts_.hidden);
  if (gate_up.format != experts_.gate_up_format || down.format != experts_.down_format) {
    throw std::runtime_error(
        fmt::format("{}: the format of expert {} differs from that of the first, wanted one for all", name, added_));
  }
  return static_cast<size_t>(added_++);
}

void WeightLoader::ExpertPacker::add(const tensor::HostTensor& gate, const tensor::HostTensor& up,
                                     const tensor::HostTensor& down) {
  if (experts_.gated) check_pair(gate, up);
  check_matrix(up);
  check_matrix(down);
  const std::lock_guard lock(loader_.mutex_);
  const size_t at = count_expert(
      {.out_features = static_cast<int32_t>(up.shape[0]), .in_features = static_cast<int32_t>(up.shape[1])},
      {.out_features = static_cast<int32_t>(down.shape[0]), .in_features = static_cast<int32_t>(down.shape[1])},
      up.name);
  std::byte* const to = gate_up_.data() + at * bytes_of(gate_up_weight());
  if (experts_.gated) {
    loader_.pack_both(gate, up, to);
  } else {
    loader_.pack_part(up, 0, PackAs::kRows, to);
  }
  loader_.pack_part(down, 0, PackAs::kRows, down_.data() + at * bytes_of(down_weight()));
}

void WeightLoader::ExpertPacker::add_coded(std::vector<CodedPart> gate_up, const CodedPart& down) {
  const CodedWeight pair = coded_weight(std::move(gate_up), experts_.gated, loader_.device_.products);
  const CodedWeight back = coded_weight({down}, false, loader_.device_.products);
  const std::lock_guard lock(loader_.mutex_);
  const size_t at = count_expert(pair.weight, back.weight, pair.parts.front().name());
  loader_.pack_panels(pair, gate_up_.data() + at * bytes_of(gate_up_weight()));
  loader_.pack_panels(back, down_.data() + at * bytes_of(down_weight()));
}

void WeightLoader::ExpertPacker::add_biases(const tensor::ExpertBiases& biases) {
  CHECK(options_.has_biases && ++added_biases_ == added_, "{} biases for {} experts", added_biases_, added_);
  const auto intermediate = static_cast<size_t>(experts_.intermediate);
  CHECK(biases.gate.size() == intermediate && biases.up.size() == intermediate &&
            biases.down.size() == static_cast<size_t>(experts_.hidden),
        "biases [{}], [{}] and [{}] for {} features of {}", biases.gate.size(), biases.up.size(), biases.down.size(),
        intermediate, experts_.hidden);
  gate_up_biases_.insert(gate_up_biases_.end(), biases.gate.begin(), biases.gate.end());
  gate_up_biases_.insert(gate_up_biases_.end(), biases.up.begin(), biases.up.end());
  down_biases_.insert(down_biases_.end(), biases.down.begin(), biases.down.end());
}

std::unique_ptr<tensor::Experts> WeightLoader::ExpertPacker::finish() {
  CHECK(added_ == own_count(), "{} experts were added, wanted {}", added_, own_count());
  CHECK(added_biases_ == (options_.has_biases ? added_ : 0), "{} biases for {} experts", added_biases_, added_);
  loader_.device_.make_current();
  loader_.device_.set_up.synchronize();
  experts_.gate_up = gate_up_.data();
  experts_.down = down_.data();
  ExpertVectors vectors;
  if (!options_.routing.choice_bias.empty()) {
    vectors.choice_bias = loader_.load_vector(options_.routing.choice_bias);
    experts_.routing.choice_bias = vectors.choice_bias->data();
  }
  if (!options_.routing.expert_scales.empty()) {
    vectors.expert_scales = loader_.load_vector(options_.routing.expert_scales);
    experts_.routing.expert_scales = vectors.expert_scales->data();
  }
  if (options_.has_biases) {
    vectors.gate_up_biases = loader_.load_vector(gate_up_biases_);
    vectors.down_biases = loader_.load_vector(down_biases_);
    experts_.gate_up_biases = vectors.gate_up_biases->data();
    experts_.down_biases = vectors.down_biases->data();
  }
  return std::make_unique<CudaExperts>(std::move(gate_up_), std::move(down_), std::move(vectors), options_.routing,
                                       experts_);
}

std::unique_ptr<tensor::ExpertPacker> WeightLoader::pack_experts(int32_t count, const tensor::ExpertOptions& options,
                                                                 tensor::RankPosition position) {
  const tensor::Routing& routing = options.routing;
  CHECK(routing.experts_per_row >= 1 && routing.experts_per_row <= count, "{} of {} experts per row",
        routing.experts_per_row, count);
  if (count > kMaxExperts) {
    throw std::runtime_error(fmt::format("CUDA: a layer has {} experts, wanted at most {}", count, kMaxExperts));
  }
  CHECK(routing.choice_bias.empty() || routing.choice_bias.size() == static_cast<size_t>(count),
        "{} values of a correction bias for {} experts", routing.choice_bias.size(), count);
  CHECK(routing.expert_scales.empty() || routing.expert_scales.size() == static_cast<size_t>(count),
        "{} scales for {} experts", routing.expert_scales.size(), count);
  CHECK(options.gated || !options.has_biases, "experts without a gate have biases");
  return std::make_unique<ExpertPacker>(*this, count, options, position);
}

}  // namespace millrace::cuda
