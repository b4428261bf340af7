#include "model/weights.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>

#include "base/check.h"
#include "model/encoder_tensors.h"
#include "model/tensor_list.h"

namespace millrace::model {
namespace {

using tensor::HostTensor;
using tensor::W8Matrix;
using tensor::W8Storage;

/// Finds the tensors of a span and counts progress.
class Loader {
 public:
  Loader(const Checkpoint& checkpoint, tensor::Backend& backend, const ModelConfig& config, const LoadOptions& options)
      : checkpoint_(checkpoint),
        backend_(backend),
        quantization_(config.quantization),
        keeps_unquantized_(config.keeps_unquantized_projections),
        options_(options) {}

  Result<void> resolve(const ModelConfig& config, const std::vector<TensorSpec>& specs) {
    const bool per_channel_scales = w8_scaling_of(quantization_) == tensor::W8Scaling::kPerChannel;
    for (const TensorSpec& spec : specs) {
      Entry entry;
      if (stored_in_w8(checkpoint_, config, spec)) {
        Result<W8Matrix> found = checkpoint_.find_w8(spec.name, spec.shape, per_channel_scales);
        if (!found) return found.error();
        entry.bytes = found->bytes();
        entry.matrix = std::move(*found);
      } else {
        Result<HostTensor> found = checkpoint_.find(spec.name, spec.shape);
        if (!found) return found.error();
        entry.bytes = found->bytes();
        entry.tensor = std::move(*found);
      }
      state_.bytes_total += entry.bytes;
      entries_.emplace(spec.name, std::move(entry));
    }
    state_.tensors_total = specs.size();
    report();
    return {};
  }

  const HostTensor& tensor(std::string_view name) const { return entry(name).tensor; }

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
    if (quantization_ == Quantization::kNone) return false;
    const auto is_stored_so = [this](const std::string& name) { return entry(name).matrix.has_value(); };
    return !keeps_unquantized_ || std::ranges::any_of(names, is_stored_so);
  }

  std::unique_ptr<tensor::PackedWeight> pack(std::initializer_list<std::string> names) {
    auto weight = pack_uncounted(names);
    for (const std::string& name : names) count(name);
    return weight;
  }

  std::unique_ptr<tensor::PackedWeight> pack_uncounted(std::initializer_list<std::string> names) {
    if (!in_8_bits({names.begin(), names.size()})) {
      std::vector<HostTensor> parts;
      for (const std::string& name : names) parts.push_back(tensor(name));
      return backend_.pack(parts);
    }
    std::vector<W8Storage> storage;
    std::vector<W8Matrix> parts;
    for (const std::string& name : names) parts.push_back(matrix(name, storage));
    return backend_.pack_w8(parts, activations_of(quantization_));
  }

  /// Finds a tensor as stored, whatever the quantization.
  std::unique_ptr<tensor::PackedWeight> pack_plain(const std::string& name) {
    auto weight = backend_.pack({&tensor(name), 1});
    count(name);
    return weight;
  }

  std::unique_ptr<tensor::PackedWeight> pack_gate_up(const std::string& gate, const std::string& up) {
    std::unique_ptr<tensor::PackedWeight> weight;
    if (in_8_bits(std::array{gate, up})) {
      std::vector<W8Storage> storage;
      const W8Matrix gate_matrix = matrix(gate, storage);
      weight = backend_.pack_gate_up_w8(gate_matrix, matrix(up, storage), activations_of(quantization_));
    } else {
      weight = backend_.pack_gate_up(tensor(gate), tensor(up));
    }
    count(gate);
    count(up);
    return weight;
  }

  void pack_expert(tensor::ExpertPacker& packer, bool in_8_bits, const std::string& gate, const std::string& up,
                   const std::string& down) {
    if (in_8_bits) {
      std::vector<W8Storage> storage;
      const W8Matrix gate_matrix = matrix(gate, storage);
      const W8Matrix up_matrix = matrix(up, storage);
      packer.add_w8(gate_matrix, up_matrix, matrix(down, storage), activations_of(quantization_));
    } else {
      packer.add(tensor(gate), tensor(up), tensor(down));
    }
    for (const std::string& name : {gate, up, down}) count(name);
  }

  /// Marks a tensor as packed, hashes it while its bytes are in memory, and then releases them.
  void count(std::string_view name) {
    const Entry& done = entry(name);
    if (options_.with_fingerprint) {
      done.matrix ? fingerprint_.add(*done.matrix) : fingerprint_.add(done.tensor);
    }
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
  /// Finds a tensor, or a matrix that is stored in 8 bits.
  struct Entry {
    HostTensor tensor;
    std::optional<W8Matrix> matrix;
    size_t bytes = 0;
  };

  const Entry& entry(std::string_view name) const {
    const auto found = entries_.find(std::string(name));
    CHECK(found != entries_.end(), "tensor '{}' is not listed for its stage", name);
    return found->second;
  }

  /// Finds a matrix in 8 bits: as stored, or quantized into `storage`.
  W8Matrix matrix(const std::string& name, std::vector<W8Storage>& storage) const {
    const Entry& found = entry(name);
    if (found.matrix) return *found.matrix;
    storage.push_back(tensor::quantize_w8(found.tensor, w8_scaling_of(quantization_), options_.threads));
    return storage.back().view();
  }

  void report() const {
    if (options_.progress) options_.progress(state_);
  }

  const Checkpoint& checkpoint_;
  tensor::Backend& backend_;
  const Quantization quantization_;
  const bool keeps_unquantized_;
  const LoadOptions& options_;
  std::unordered_map<std::string, Entry> entries_;
  LoadProgress state_;
  WeightsFingerprint fingerprint_;
};

void load_experts(Loader& loader, tensor::Backend& backend, const ModelConfig& config, int32_t layer,
                  LayerWeights& weights) {
  weights.router = loader.pack_plain(router_name(config, layer));
  const auto packer = backend.pack_experts(config.moe.expert_count, {.experts_per_row = config.moe.experts_per_token,
                                                                     .renormalize = config.moe.renormalize});
  std::vector<std::string> names;  // [experts, 3]
  for (int32_t expert = 0; expert < config.moe.expert_count; ++expert) {
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
  weights.output = loader.pack({name("self_attn.o_proj.weight")});
  if (config.output_bias) weights.output_bias = loader.vector({name("self_attn.o_proj.bias")});
  weights.mlp_norm = loader.vector({name("post_attention_layernorm.weight")});
  if (config.is_sparse(layer)) {
    load_experts(loader, backend, config, layer, weights);
  } else {
    weights.gate_up = loader.pack_gate_up(name("mlp.gate_proj.weight"), name("mlp.up_proj.weight"));
    weights.down = loader.pack({name("mlp.down_proj.weight")});
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
  auto head = loader.pack_uncounted({std::string(head_name(config))});
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
  Loader loader(checkpoint, backend, config, options);
  RETURN_IF_ERROR(loader.resolve(config, stage_tensors(config, span)));
  RETURN_IF_ERROR(reject_unknown_tensors(checkpoint, config, span));
  StageWeights weights;
  weights.checkpoint_bytes = loader.total_bytes();
  if (config.encoder) {
    load_encoder(loader, backend, config, span, weights);
  } else {
    load_decoder(loader, backend, config, span, weights);
  }
  if (options.with_fingerprint) weights.fingerprint = loader.fingerprint().finish(config, span);
  return weights;
}

}  // namespace millrace::model
