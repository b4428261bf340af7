#include "model/weights.h"

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>

#include "base/check.h"
#include "model/decoded_matrix.h"
#include "model/encoder_tensors.h"
#include "model/tensor_list.h"
#include "tensor/slices.h"

namespace millrace::model {
namespace {

using tensor::HostTensor;
using tensor::TermRange;
using tensor::W8Matrix;
using tensor::W8Storage;

/// A rank's part of a tensor: some rows in place, or some columns.
struct Part {
  HostTensor tensor;                            // with all columns
  std::optional<W8Matrix> matrix;               // in place of `tensor` where it is stored in 8 bits
  std::optional<weights::StoredWeight> stored;  // in place of `tensor` where it is decoded while it is packed
  TermRange rows;                               // of `stored`
  std::optional<TermRange> columns;
  size_t bytes = 0;
};

/// The memory of matrices that are quantized or cut while they are packed.
struct PackingMemory {
  std::deque<DecodedMatrix> decoded;
  std::vector<W8Storage> quantized;
  std::vector<tensor::HostSlice> slices;
  std::vector<tensor::W8Slice> w8_slices;
};

/// Finds the parts of a span's tensors and counts progress.
class Loader {
 public:
  Loader(const Checkpoint& checkpoint, tensor::Backend& backend, const ModelConfig& config, const LoadOptions& options)
      : checkpoint_(checkpoint),
        backend_(backend),
        config_(config),
        layout_(rank_layout(config, options.position, options.experts)),
        options_(options) {}

  [[nodiscard]] const RankLayout& layout() const { return layout_; }

  Result<void> resolve(const std::vector<TensorSpec>& specs) {
    std::vector<std::string> names;
    for (const TensorSpec& spec : specs) {
      if (is_owned(spec)) names.push_back(spec.name);
    }
    RETURN_IF_ERROR(checkpoint_.prepare(names));
    for (const TensorSpec& spec : specs) {
      if (!is_owned(spec)) continue;
      Result<Part> part = find(spec);
      if (!part) return part.error();
      state_.bytes_total += part->bytes;
      parts_.emplace(spec.name, std::move(*part));
    }
    state_.tensors_total = parts_.size();
    report();
    return {};
  }

  const HostTensor& tensor(std::string_view name) const { return part(name).tensor; }

  std::unique_ptr<tensor::DeviceVector> vector(std::initializer_list<std::string> names) {
    std::vector<float> values;
    for (const std::string& name : names) {
      const HostTensor& source = tensor(name);
      const size_t begin = values.size();
      values.resize(begin + static_cast<size_t>(source.shape.elements()));
      tensor::read_floats(source, 0, source.shape.elements(), values.data() + begin);
    }
    auto vector = backend_.make_vector(values);
    for (const std::string& name : names) count(name);
    return vector;
  }

  /// Returns whether weights that are packed together are packed in 8 bits.
  [[nodiscard]] bool in_8_bits(std::span<const std::string> names) const {
    if (config_.quantization == Quantization::kNone) return false;
    const auto is_stored_so = [this](const std::string& name) { return part(name).matrix.has_value(); };
    return !config_.keeps_unquantized_projections || std::ranges::any_of(names, is_stored_so);
  }

  std::unique_ptr<tensor::PackedWeight> pack(std::initializer_list<std::string> names) {
    std::unique_ptr<tensor::PackedWeight> weight;
    PackingMemory memory;
    if (in_8_bits({names.begin(), names.size()})) {
      std::vector<W8Matrix> parts;
      for (const std::string& name : names) parts.push_back(matrix(name, memory));
      weight = backend_.pack_w8(parts, activations_of(config_.quantization));
    } else {
      std::vector<HostTensor> parts;
      for (const std::string& name : names) parts.push_back(plain(part(name), memory));
      weight = backend_.pack(parts);
    }
    for (const std::string& name : names) count(name);
    return weight;
  }

  /// Packs a weight whose columns are divided by `shards`.
  std::unique_ptr<tensor::PackedWeight> pack_sharded(const std::string& name, const tensor::SumShards& shards) {
    std::unique_ptr<tensor::PackedWeight> weight;
    PackingMemory memory;
    if (in_8_bits({&name, 1})) {
      weight = backend_.pack_sharded_w8(matrix(name, memory), activations_of(config_.quantization), shards);
    } else {
      weight = backend_.pack_sharded(columns(part(name), memory), shards);
    }
    count(name);
    return weight;
  }

  /// Packs the rank's rows of the output head, with zeros up to RankLayout::logit_columns, without counting them.
  std::unique_ptr<tensor::PackedWeight> pack_head(const std::string& name) {
    const int64_t rows = layout_.logit_columns;
    PackingMemory memory;
    // A tied head is the embedding, of which the rank has all rows.
    if (in_8_bits({&name, 1})) {
      W8Matrix head = matrix(name, memory);
      if (head.rows > layout_.vocabulary.size()) head = tensor::row_slice(head, layout_.vocabulary);
      if (head.rows < rows) head = memory.w8_slices.emplace_back(tensor::padded_rows(head, 0, rows)).matrix;
      return backend_.pack_w8({&head, 1}, activations_of(config_.quantization));
    }
    HostTensor head = plain(part(name), memory);
    if (head.shape[0] > layout_.vocabulary.size()) head = tensor::row_slice(head, layout_.vocabulary);
    if (head.shape[0] < rows) head = memory.slices.emplace_back(tensor::padded_rows(head, 0, rows)).tensor;
    return backend_.pack({&head, 1});
  }

  /// Finds a tensor as stored, whatever the quantization.
  std::unique_ptr<tensor::PackedWeight> pack_plain(const std::string& name) {
    auto weight = backend_.pack({&tensor(name), 1});
    count(name);
    return weight;
  }

  std::unique_ptr<tensor::PackedWeight> pack_gate_up(const std::string& gate, const std::string& up) {
    std::unique_ptr<tensor::PackedWeight> weight;
    PackingMemory memory;
    if (in_8_bits(std::array{gate, up})) {
      const W8Matrix gate_matrix = matrix(gate, memory);
      weight = backend_.pack_gate_up_w8(gate_matrix, matrix(up, memory), activations_of(config_.quantization));
    } else {
      weight = backend_.pack_gate_up(plain(part(gate), memory), plain(part(up), memory));
    }
    count(gate);
    count(up);
    return weight;
  }

  void pack_expert(tensor::ExpertPacker& packer, bool in_8_bits, const std::string& gate, const std::string& up,
                   const std::string& down) {
    PackingMemory memory;
    if (in_8_bits) {
      const W8Matrix gate_matrix = matrix(gate, memory);
      const W8Matrix up_matrix = matrix(up, memory);
      packer.add_w8(gate_matrix, up_matrix, matrix(down, memory), activations_of(config_.quantization));
    } else {
      const HostTensor gate_tensor = plain(part(gate), memory);
      const HostTensor up_tensor = plain(part(up), memory);
      packer.add(gate_tensor, up_tensor, plain(part(down), memory));
    }
    for (const std::string& name : {gate, up, down}) count(name);
  }

  /// Marks a tensor as packed, hashes the part while its bytes are in memory, and then releases them.
  void count(std::string_view name) {
    const Part& done = part(name);
    if (options_.with_fingerprint) add_to_fingerprint(done);
    release(name);
    ++state_.tensors_done;
    state_.bytes_done += done.bytes;
    report();
  }
  void release(std::string_view name) const { checkpoint_.release(name); }

  [[nodiscard]] uint64_t total_bytes() const { return state_.bytes_total; }
  /// Returns the fingerprint of the tensors counted so far.
  [[nodiscard]] const WeightsFingerprint& fingerprint() const { return fingerprint_; }

 private:
  /// Finds the rank's part of a tensor.
  Result<Part> find(const TensorSpec& spec) const {
    const bool by_columns = spec.division == Division::kHeadColumns || spec.division == Division::kFeatureColumns;
    const int64_t whole = spec.shape[by_columns ? 1 : 0];
    const TermRange range = layout_.part(spec.division, config_.head_dim, whole);
    Part part;
    if (stored_in_w8(checkpoint_, config_, spec)) {
      const bool per_channel_scales = w8_scaling_of(config_.quantization) == tensor::W8Scaling::kPerChannel;
      Result<W8Matrix> found = checkpoint_.find_w8(spec.name, spec.shape, per_channel_scales);
      if (!found) return found.error();
      part.bytes = found->bytes();
      part.matrix = by_columns ? std::move(*found) : tensor::row_slice(*found, range);
    } else if (auto stored = find_stored(spec); !stored || *stored) {
      if (!stored) return stored.error();
      part.bytes = (**stored).stored_bytes();
      part.stored = std::move(**stored);
      part.rows = by_columns ? TermRange{0, spec.shape[0]} : range;
    } else {
      Result<HostTensor> found = checkpoint_.find(spec.name, spec.shape);
      if (!found) return found.error();
      part.bytes = found->bytes();
      part.tensor = by_columns ? std::move(*found) : rows(*found, range);
    }
    if (range.size() == whole) return part;
    if (by_columns) part.columns = range;
    part.bytes = part.bytes / static_cast<size_t>(whole) * static_cast<size_t>(range.size());
    return part;
  }

  [[nodiscard]] bool is_owned(const TensorSpec& spec) const {
    const TermRange experts = layout_.experts.owned();
    return spec.expert < 0 || (spec.expert >= experts.begin && spec.expert < experts.end);
  }

  /// Finds a projection that is stored in a format of its own; nothing when it is stored as plain floating point.
  Result<std::optional<weights::StoredWeight>> find_stored(const TensorSpec& spec) const {
    if (!spec.projection || config_.weight_format.method == weights::QuantMethod::kNone)
      return std::optional<weights::StoredWeight>();
    return checkpoint_.find_weight(spec.name, spec.shape, config_.weight_format);
  }

  /// Returns the rows of a part as floating point: in place, or decoded.
  HostTensor plain(const Part& part, PackingMemory& memory) const {
    if (!part.stored) return part.tensor;
    // Rounding to bf16 before bf16 arithmetic, or to 8 bits, would round twice.
    const bool to_bf16 =
        backend_.compute_dtype() == tensor::DType::kBF16 && config_.quantization == Quantization::kNone;
    return memory.decoded.emplace_back(*part.stored, part.rows, to_bf16, options_.threads).view();
  }

  /// Returns the elements of a vector, or the rows of a matrix, in place.
  static HostTensor rows(const HostTensor& tensor, TermRange range) {
    if (tensor.shape.rank() == 2) return tensor::row_slice(tensor, range);
    HostTensor elements = tensor;
    elements.shape = {range.size()};
    elements.data += static_cast<size_t>(range.begin) * tensor::size_of(tensor.dtype);
    return elements;
  }

  const Part& part(std::string_view name) const {
    const auto found = parts_.find(std::string(name));
    CHECK(found != parts_.end(), "tensor '{}' is not listed for its stage", name);
    return found->second;
  }

  /// Returns the columns of a part that is not stored in 8 bits.
  HostTensor columns(const Part& part, PackingMemory& memory) const {
    const HostTensor whole = plain(part, memory);
    if (!part.columns) return whole;
    return memory.slices.emplace_back(tensor::column_slice(whole, *part.columns)).tensor;
  }
  static W8Matrix columns(const Part& part, const W8Matrix& matrix, PackingMemory& memory) {
    if (!part.columns) return matrix;
    return memory.w8_slices.emplace_back(tensor::column_slice(matrix, *part.columns)).matrix;
  }

  /// Returns a part in 8 bits: as stored, or quantized. The scale of a whole row takes all of its columns.
  W8Matrix matrix(const std::string& name, PackingMemory& memory) const {
    const Part& found = part(name);
    if (found.matrix) return columns(found, *found.matrix, memory);
    const tensor::W8Scaling scaling = w8_scaling_of(config_.quantization);
    const bool whole_rows = scaling == tensor::W8Scaling::kPerChannel;
    const HostTensor source = whole_rows ? plain(found, memory) : columns(found, memory);
    const W8Matrix quantized =
        memory.quantized.emplace_back(tensor::quantize_w8(source, scaling, options_.threads)).view();
    return whole_rows ? columns(found, quantized, memory) : quantized;
  }

  void add_to_fingerprint(const Part& part) {
    PackingMemory memory;
    if (part.matrix)
      fingerprint_.add(columns(part, *part.matrix, memory));
    else if (part.stored)
      fingerprint_.add(*part.stored);
    else
      fingerprint_.add(columns(part, memory));
  }

  void report() const {
    if (options_.progress) options_.progress(state_);
  }

  const Checkpoint& checkpoint_;
  tensor::Backend& backend_;
  const ModelConfig& config_;
  const RankLayout layout_;
  const LoadOptions& options_;
  std::unordered_map<std::string, Part> parts_;
  LoadProgress state_;
  WeightsFingerprint fingerprint_;
};

void load_experts(Loader& loader, tensor::Backend& backend, const ModelConfig& config, int32_t layer,
                  LayerWeights& weights) {
  weights.router = loader.pack_plain(router_name(config, layer));
  const auto packer = backend.pack_experts(
      config.moe.expert_count, {.experts_per_row = config.moe.experts_per_token, .renormalize = config.moe.renormalize},
      loader.layout().experts.position);
  std::vector<std::string> names;  // [owned experts, 3]
  const TermRange owned = loader.layout().experts.owned();
  for (auto expert = static_cast<int32_t>(owned.begin); expert < owned.end; ++expert) {
    for (const ExpertPart part : {ExpertPart::kGate, ExpertPart::kUp, ExpertPart::kDown})
      names.push_back(expert_tensor_name(config, layer, expert, part));
  }
  const bool in_8_bits = loader.in_8_bits(names);  // of a layer's experts all or none
  for (size_t i = 0; i < names.size(); i += 3)
    loader.pack_expert(*packer, in_8_bits, names[i], names[i + 1], names[i + 2]);
  weights.experts = packer->finish();
}

LayerWeights load_layer(Loader& loader, tensor::Backend& backend, const ModelConfig& config, int32_t layer) {
  const auto name = [&](std::string_view part) { return layer_tensor_name(layer, part); };
  LayerWeights weights;
  weights.input_norm = loader.vector({name("input_layernorm.weight")});
  weights.qkv =
      loader.pack({name("self_attn.q_proj.weight"), name("self_attn.k_proj.weight"), name("self_attn.v_proj.weight")});
  if (config.qkv_bias)
    weights.qkv_bias =
        loader.vector({name("self_attn.q_proj.bias"), name("self_attn.k_proj.bias"), name("self_attn.v_proj.bias")});
  if (config.qk_norm) {
    weights.q_norm = loader.vector({name("self_attn.q_norm.weight")});
    weights.k_norm = loader.vector({name("self_attn.k_norm.weight")});
  }
  weights.output = loader.pack_sharded(name("self_attn.o_proj.weight"), loader.layout().head_outputs);
  if (config.output_bias) weights.output_bias = loader.vector({name("self_attn.o_proj.bias")});
  weights.mlp_norm = loader.vector({name("post_attention_layernorm.weight")});
  if (config.is_sparse(layer)) {
    load_experts(loader, backend, config, layer, weights);
  } else {
    weights.gate_up = loader.pack_gate_up(name("mlp.gate_proj.weight"), name("mlp.up_proj.weight"));
    weights.down = loader.pack_sharded(name("mlp.down_proj.weight"), loader.layout().features);
  }
  return weights;
}

LayerWeights load_encoder_layer(Loader& loader, int32_t layer) {
  const auto name = [&](std::string_view part) { return encoder_tensor_name(layer, part); };
  const std::string norm = encoder_norm_name(layer);
  LayerWeights weights;
  weights.input_norm = loader.vector({norm + ".weight"});
  weights.input_norm_bias = loader.vector({norm + ".bias"});
  weights.qkv = loader.pack(
      {name("attention.self.query.weight"), name("attention.self.key.weight"), name("attention.self.value.weight")});
  weights.qkv_bias = loader.vector(
      {name("attention.self.query.bias"), name("attention.self.key.bias"), name("attention.self.value.bias")});
  weights.output = loader.pack({name("attention.output.dense.weight")});
  weights.output_bias = loader.vector({name("attention.output.dense.bias")});
  weights.mlp_norm = loader.vector({name("attention.output.LayerNorm.weight")});
  weights.mlp_norm_bias = loader.vector({name("attention.output.LayerNorm.bias")});
  weights.up = loader.pack({name("intermediate.dense.weight")});
  weights.up_bias = loader.vector({name("intermediate.dense.bias")});
  weights.down = loader.pack({name("output.dense.weight")});
  weights.down_bias = loader.vector({name("output.dense.bias")});
  return weights;
}

void load_encoder(Loader& loader, tensor::Backend& backend, const ModelConfig& config, StageSpan span,
                  StageWeights& weights) {
  const auto table = [&](std::string_view name) {
    auto made = backend.make_embedding(loader.tensor(name));
    loader.count(name);
    return made;
  };
  if (span.first) {
    weights.embedding = table(kEncoderWords);
    weights.positions = table(kEncoderPositions);
    weights.types = table(kEncoderTypes);
  }
  for (int32_t layer = span.layers.begin; layer < span.layers.end; ++layer)
    weights.layers.push_back(load_encoder_layer(loader, layer));
  if (!span.last) return;
  const std::string norm = encoder_norm_name(config.layer_count);
  weights.final_norm = loader.vector({norm + ".weight"});
  weights.final_norm_bias = loader.vector({norm + ".bias"});
}

std::unique_ptr<tensor::PackedWeight> load_head(Loader& loader, const ModelConfig& config, StageSpan span) {
  auto head = loader.pack_head(std::string(head_name(config)));
  if (span.first && config.tied_embeddings)
    loader.release(head_name(config));  // counted as the embedding
  else
    loader.count(head_name(config));
  return head;
}

void load_decoder(Loader& loader, tensor::Backend& backend, const ModelConfig& config, StageSpan span,
                  StageWeights& weights) {
  if (span.first) {
    weights.embedding = backend.make_embedding(loader.tensor(kEmbeddingName));
    loader.count(kEmbeddingName);
  }
  if (span.last) {
    // The largest tensor first: while it is packed, memory holds it twice.
    if (config.has_output_head) weights.head = load_head(loader, config, span);
    weights.final_norm = loader.vector({std::string(kFinalNormName)});
  }
  for (int32_t layer = span.layers.begin; layer < span.layers.end; ++layer)
    weights.layers.push_back(load_layer(loader, backend, config, layer));
}

}  // namespace

Result<void> check_backend(const ModelConfig& config, const tensor::Backend& backend) {
  if (config.quantization != Quantization::kNone && !backend.packs_w8())
    return make_error(
        ErrorCode::kInvalidArgument,
        "{}: does not support 8-bit weights (quantization {}), wanted an unquantized model or another device",
        backend.description(), to_string(config.quantization));
  if (config.encoder && !backend.computes_encoders())
    return make_error(ErrorCode::kInvalidArgument, "{}: does not compute encoders such as {}, wanted another device",
                      backend.description(), config.architecture);
  return {};
}

Result<StageWeights> load_weights(const Checkpoint& checkpoint, const ModelConfig& config, StageSpan span,
                                  tensor::Backend& backend, const LoadOptions& options) {
  RETURN_IF_ERROR(check_backend(config, backend));
  RETURN_IF_ERROR(check_ranks(config, options.position.size));
  Loader loader(checkpoint, backend, config, options);
  RETURN_IF_ERROR(loader.resolve(stage_tensors(config, span)));
  RETURN_IF_ERROR(reject_unknown_tensors(checkpoint, config, span));
  StageWeights weights;
  weights.checkpoint_bytes = loader.total_bytes();
  if (config.encoder) {
    load_encoder(loader, backend, config, span, weights);
  } else {
    load_decoder(loader, backend, config, span, weights);
  }
  if (options.with_fingerprint) weights.fingerprint = loader.fingerprint().finish(config, span, options.position);
  return weights;
}

}  // namespace millrace::model
