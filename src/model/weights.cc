#include "model/weights.h"

#include <algorithm>
#include <array>
#include <set>
#include <span>
#include <string>

#include "base/log.h"
#include "model/needed_features.h"
#include "model/tensor_list.h"
#include "model/weight_parts.h"
#include "tensor/slices.h"

namespace millrace::model {
namespace {

using tensor::HostTensor;
using tensor::TermRange;
using tensor::W8Matrix;

/// Packs the parts of a span's weights and counts progress.
class Loader {
 public:
  Loader(const Checkpoint& checkpoint, tensor::Backend& backend, const ModelConfig& config, const LoadOptions& options)
      : checkpoint_(checkpoint),
        backend_(backend),
        activations_(activations_of(config.quantization)),
        is_encoder_(config.encoder.has_value()),
        options_(options),
        // Rounding to bf16 before bf16 arithmetic, or to 8 bits, would round twice.
        parts_(checkpoint, config, options.position,
               backend.compute_dtype() == tensor::DType::kBF16 && config.quantization == Quantization::kNone,
               options.threads) {}

  [[nodiscard]] const RankLayout& layout() const { return parts_.layout(); }

  Result<void> resolve(std::vector<TensorSpec> specs) {
    RETURN_IF_ERROR(parts_.resolve(std::move(specs)));
    for (const auto& [name, part] : parts_.all()) state_.bytes_total += part.bytes;
    state_.tensors_total = parts_.all().size();
    report();
    return {};
  }

  const HostTensor& tensor(std::string_view name) const { return part(name).tensor; }
  [[nodiscard]] bool in_8_bits(std::span<const std::string> names) const { return parts_.in_8_bits(names); }

  /// Returns the values of a tensor that is not quantized.
  std::vector<float> values(const std::string& name) {
    const WeightPart& found = part(name);
    std::vector<float> stored(static_cast<size_t>(found.tensor.shape.elements()));
    tensor::read_floats(found.tensor, 0, found.tensor.shape.elements(), stored.data());
    std::vector<float> ordered;
    for (const int64_t row : found.order) ordered.push_back(stored[static_cast<size_t>(row)]);
    count(name);
    return found.order.empty() ? stored : ordered;
  }

  /// Makes one vector of several, each of whose elements is added to `addend`.
  std::unique_ptr<tensor::DeviceVector> vector(std::initializer_list<std::string> names, float addend = 0.0f) {
    std::vector<float> all;
    for (const std::string& name : names) {
      for (const float value : values(name)) all.push_back(value + addend);
    }
    return backend_.make_vector(all);
  }

  std::unique_ptr<tensor::PackedWeight> pack(std::initializer_list<std::string> names) {
    std::unique_ptr<tensor::PackedWeight> weight;
    PackingMemory memory;
    if (in_8_bits({names.begin(), names.size()})) {
      std::vector<W8Matrix> parts;
      for (const std::string& name : names) parts.push_back(matrix(name, memory));
      weight = backend_.pack_w8(parts, activations_);
    } else {
      std::vector<HostTensor> parts;
      for (const std::string& name : names) parts.push_back(plain(part(name), memory));
      weight = backend_.pack(parts);
    }
    for (const std::string& name : names) count(name);
    return weight;
  }

  /// Packs a weight whose columns are divided by `shards`. An encoder has one rank, and therefore no shards.
  std::unique_ptr<tensor::PackedWeight> pack_sharded(const std::string& name, const tensor::SumShards& shards) {
    if (is_encoder_) return pack({name});
    std::unique_ptr<tensor::PackedWeight> weight;
    PackingMemory memory;
    if (in_8_bits({&name, 1})) {
      weight = backend_.pack_sharded_w8(matrix(name, memory), activations_, shards);
    } else {
      weight = backend_.pack_sharded(columns(part(name), memory), shards);
    }
    count(name);
    return weight;
  }

  /// Packs the rank's rows of the output head, with zeros up to RankLayout::logit_columns, without counting them.
  std::unique_ptr<tensor::PackedWeight> pack_head(const std::string& name) {
    const int64_t rows = layout().logit_columns;
    PackingMemory memory;
    // A tied head is the embedding, of which the rank has all rows.
    if (in_8_bits({&name, 1})) {
      W8Matrix head = matrix(name, memory);
      if (head.rows > layout().vocabulary.size()) head = tensor::row_slice(head, layout().vocabulary);
      if (head.rows < rows) head = memory.w8_slices.emplace_back(tensor::padded_rows(head, 0, rows)).matrix;
      return backend_.pack_w8({&head, 1}, activations_);
    }
    HostTensor head = plain(part(name), memory);
    if (head.shape[0] > layout().vocabulary.size()) head = tensor::row_slice(head, layout().vocabulary);
    if (head.shape[0] < rows) head = memory.slices.emplace_back(tensor::padded_rows(head, 0, rows)).tensor;
    return backend_.pack({&head, 1});
  }

  /// Packs a tensor as stored, whatever the quantization. With `keeps_f32` one that is stored in f32 stays so.
  std::unique_ptr<tensor::PackedWeight> pack_plain(const std::string& name, bool keeps_f32 = false) {
    const HostTensor& stored = tensor(name);
    auto weight =
        keeps_f32 && stored.dtype == tensor::DType::kF32 ? backend_.pack_f32(stored) : backend_.pack({&stored, 1});
    count(name);
    return weight;
  }

  std::unique_ptr<tensor::PackedWeight> pack_gate_up(const std::string& gate, const std::string& up) {
    std::unique_ptr<tensor::PackedWeight> weight;
    PackingMemory memory;
    if (in_8_bits(std::array{gate, up})) {
      const W8Matrix gate_matrix = matrix(gate, memory);
      weight = backend_.pack_gate_up_w8(gate_matrix, matrix(up, memory), activations_);
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
      packer.add_w8(gate_matrix, up_matrix, matrix(down, memory), activations_);
    } else {
      const HostTensor gate_tensor = plain(part(gate), memory);
      const HostTensor up_tensor = plain(part(up), memory);
      packer.add(gate_tensor, up_tensor, plain(part(down), memory));
    }
    for (const std::string& name : {gate, up, down}) count(name);
  }

  /// Marks a tensor as packed, hashes the part while its bytes are in memory, and then releases them.
  void count(std::string_view name) {
    const WeightPart& done = part(name);
    if (options_.with_fingerprint) add_to_fingerprint(done);
    if (!done.spec->part || done.spec->expert < 0) release(done.spec->stored_name());
    ++state_.tensors_done;
    state_.bytes_done += done.bytes;
    report();
  }
  void release(std::string_view name) const { checkpoint_.release(name); }
  /// Releases the tensors that have the parts of several experts, after all have been counted.
  void release_shared(std::span<const std::string> names) const {
    std::set<std::string> stored;
    for (const std::string& name : names) {
      const TensorSpec& spec = *part(name).spec;
      if (!spec.part) continue;
      stored.insert(spec.part->tensor);
      stored.insert(spec.part->scales);
    }
    for (const std::string& name : stored) release(name);
  }

  [[nodiscard]] uint64_t total_bytes() const { return state_.bytes_total; }
  /// Returns the fingerprint of the tensors counted so far.
  [[nodiscard]] const WeightsFingerprint& fingerprint() const { return fingerprint_; }

 private:
  [[nodiscard]] const WeightPart& part(std::string_view name) const { return parts_.part(name); }
  HostTensor plain(const WeightPart& part, PackingMemory& memory) const { return parts_.plain(part, memory); }
  HostTensor columns(const WeightPart& part, PackingMemory& memory) const { return parts_.columns(part, memory); }
  W8Matrix matrix(std::string_view name, PackingMemory& memory) const { return parts_.matrix(part(name), memory); }

  /// Adds a part under its weight's name, since one stored tensor may have several.
  void add_to_fingerprint(const WeightPart& part) {
    const auto add = [&](auto values) {
      values.name = part.spec->name;
      fingerprint_.add(values);
    };
    PackingMemory memory;
    if (part.matrix)
      add(parts_.matrix(part, memory));
    else if (part.stored)
      add(*part.stored);
    else if (part.spec->shape.rank() == 2)
      add(columns(part, memory));
    else
      add(part.tensor);
  }

  void report() const {
    if (options_.progress) options_.progress(state_);
  }

  const Checkpoint& checkpoint_;
  tensor::Backend& backend_;
  const tensor::W8Activations activations_;
  const bool is_encoder_;
  const LoadOptions& options_;
  WeightParts parts_;
  LoadProgress state_;
  WeightsFingerprint fingerprint_;
};

/// Returns what is added to the stored weights of norms.
float norm_addend(const ModelConfig& config) {
  return config.norm == NormKind::kRmsPlusOne ? 1.0f : 0.0f;
}

/// The biases of all experts of a layer: [experts, 2·intermediate] with gate and up in turn, and [experts, hidden].
class ExpertBiasReader {
 public:
  ExpertBiasReader(int64_t intermediate, int64_t hidden)
      : hidden_(static_cast<size_t>(hidden)), gate_(static_cast<size_t>(intermediate)), up_(gate_.size()) {}
  void set(std::vector<float> gate_up, std::vector<float> down) {
    gate_up_ = std::move(gate_up);
    down_ = std::move(down);
  }
  void add_to(tensor::ExpertPacker& packer, int64_t expert) {
    const auto at = static_cast<size_t>(expert);
    const float* const own = gate_up_.data() + at * 2 * gate_.size();
    for (size_t i = 0; i < gate_.size(); ++i) {
      gate_[i] = own[2 * i];
      up_[i] = own[2 * i + 1];
    }
    packer.add_biases({.gate = gate_, .up = up_, .down = std::span(down_).subspan(at * hidden_, hidden_)});
  }

 private:
  size_t hidden_;
  std::vector<float> gate_;
  std::vector<float> up_;
  std::vector<float> gate_up_;
  std::vector<float> down_;
};

/// Loads one layer as its description says.
class LayerLoader {
 public:
  LayerLoader(Loader& loader, tensor::Backend& backend, const ModelConfig& config, int32_t index)
      : loader_(loader),
        backend_(backend),
        config_(config),
        names_(config.names),
        layer_(config.layer(index)),
        layout_(loader.layout().layer(index)),
        index_(index) {}

  LayerWeights load() {
    const LayerNorms& norms = layer_.norms;
    if (norms.before_attention)
      load_norm(names_.norm_before_layer(index_, config_.layer_count()), weights_.input_norm, weights_.input_norm_bias);
    load_attention();
    if (norms.after_attention) weights_.attention_norm = norm(weight(names_.attention_output_norm));
    if (norms.before_feed_forward && !layer_.parallel)
      load_norm(names_.plain(index_, names_.feed_forward_norm), weights_.mlp_norm, weights_.mlp_norm_bias);
    if (layer_.feed_forward.moe)
      load_experts(*layer_.feed_forward.moe);
    else
      load_feed_forward();
    if (norms.after_feed_forward) weights_.output_norm = norm(weight(names_.feed_forward_output_norm));
    return std::move(weights_);
  }

 private:
  [[nodiscard]] std::string weight(std::string_view part) const { return names_.weight(index_, part); }
  [[nodiscard]] std::string bias(std::string_view part) const { return names_.bias(index_, part); }
  std::unique_ptr<tensor::DeviceVector> norm(const std::string& name) {
    return loader_.vector({name}, norm_addend(config_));
  }
  void load_norm(const std::string& name, std::unique_ptr<tensor::DeviceVector>& vector,
                 std::unique_ptr<tensor::DeviceVector>& bias) {
    vector = norm(name + ".weight");
    if (config_.norm == NormKind::kLayerInPlace) bias = loader_.vector({name + ".bias"});
  }

  void load_attention() {
    const AttentionConfig& attention = layer_.attention;
    weights_.qkv = loader_.pack({weight(names_.query), weight(names_.key), weight(names_.value)});
    if (attention.qkv_bias)
      weights_.qkv_bias = loader_.vector({bias(names_.query), bias(names_.key), bias(names_.value)});
    if (attention.qk_norm != QkNorm::kNone) {
      weights_.q_norm = norm(weight(names_.query_norm));
      weights_.k_norm = norm(weight(names_.key_norm));
    }
    if (attention.sinks) weights_.sinks = loader_.vector({names_.plain(index_, names_.sinks)});
    weights_.output = loader_.pack_sharded(weight(names_.output), layout_.head_outputs);
    if (attention.output_bias) weights_.output_bias = loader_.vector({bias(names_.output)});
  }

  void load_feed_forward() {
    const FeedForwardConfig& feed_forward = layer_.feed_forward;
    if (!feed_forward.gated) {
      weights_.up = loader_.pack({weight(names_.up)});
      if (feed_forward.bias) weights_.up_bias = loader_.vector({bias(names_.up)});
    } else if (feed_forward.activation == MlpActivation::kSilu) {
      weights_.gate_up = loader_.pack_gate_up(weight(names_.gate), weight(names_.up));
    } else {
      weights_.gate_up = loader_.pack({weight(names_.gate), weight(names_.up)});
    }
    weights_.down = loader_.pack_sharded(weight(names_.down), layout_.features);
    if (feed_forward.bias) weights_.down_bias = loader_.vector({bias(names_.down)});
  }

  void load_experts(const MoeConfig& moe) {
    weights_.router = loader_.pack_plain(router_name(config_, index_), moe.f32_router);
    if (moe.router_bias) weights_.router_bias = loader_.vector({bias(names_.router)});
    tensor::Routing routing = moe.routing();
    if (moe.choice_bias) routing.choice_bias = loader_.values(names_.plain(index_, names_.choice_bias));
    const auto packer = backend_.pack_experts(
        moe.expert_count, {.routing = routing, .activation = moe.activation, .has_biases = moe.biases},
        loader_.layout().position);
    std::vector<std::string> names;  // [owned experts, 3]
    const TermRange owned = layout_.experts.owned();
    for (auto expert = static_cast<int32_t>(owned.begin); expert < owned.end; ++expert) {
      for (const ExpertPart part : {ExpertPart::kGate, ExpertPart::kUp, ExpertPart::kDown})
        names.push_back(expert_tensor_name(config_, index_, expert, part));
    }
    const bool in_8_bits = loader_.in_8_bits(names);  // of a layer's experts all or none
    ExpertBiasReader biases(moe.intermediate_size, config_.hidden_size);
    if (moe.biases)
      biases.set(loader_.values(fused_bias_name(config_, index_, ExpertPart::kGate)),
                 loader_.values(fused_bias_name(config_, index_, ExpertPart::kDown)));
    for (size_t i = 0; i < names.size(); i += 3) {
      loader_.pack_expert(*packer, in_8_bits, names[i], names[i + 1], names[i + 2]);
      if (moe.biases) biases.add_to(*packer, owned.begin + static_cast<int64_t>(i / 3));
    }
    loader_.release_shared(names);
    weights_.experts = packer->finish();
    if (moe.shared) load_shared_expert(*moe.shared);
  }

  void load_shared_expert(const SharedExpertConfig& shared) {
    weights_.gate_up = loader_.pack_gate_up(weight(names_.shared_gate), weight(names_.shared_up));
    weights_.down = loader_.pack_sharded(weight(names_.shared_down), layout_.features);
    if (shared.has_gate) weights_.shared_expert_gate = loader_.pack_plain(weight(names_.shared_expert_gate));
  }

  Loader& loader_;
  tensor::Backend& backend_;
  const ModelConfig& config_;
  const TensorNames& names_;
  const LayerConfig& layer_;
  const LayerLayout& layout_;
  int32_t index_;
  LayerWeights weights_;
};

std::unique_ptr<tensor::PackedWeight> load_head(Loader& loader, const ModelConfig& config, StageSpan span) {
  auto head = loader.pack_head(std::string(head_name(config)));
  if (span.first && config.tied_embeddings)
    loader.release(head_name(config));  // counted as the embedding
  else
    loader.count(head_name(config));
  return head;
}

void load_parts(Loader& loader, tensor::Backend& backend, const ModelConfig& config, StageSpan span,
                StageWeights& weights) {
  const TensorNames& names = config.names;
  const auto table = [&](std::string_view name) {
    auto made = backend.make_embedding(loader.tensor(name));
    loader.count(name);
    return made;
  };
  if (span.first) {
    weights.embedding = table(names.embedding);
    if (config.encoder) {
      weights.positions = table(names.position_embedding);
      weights.types = table(names.type_embedding);
    }
  }
  if (span.last) {
    // The largest tensor first: while it is packed, memory holds it twice.
    if (config.has_output_head) weights.head = load_head(loader, config, span);
    const std::string norm = names.norm_before_layer(config.layer_count(), config.layer_count());
    weights.final_norm = loader.vector({norm + ".weight"}, norm_addend(config));
    if (config.norm == NormKind::kLayerInPlace) weights.final_norm_bias = loader.vector({norm + ".bias"});
  }
  for (int32_t layer = span.layers.begin; layer < span.layers.end; ++layer)
    weights.layers.push_back(LayerLoader(loader, backend, config, layer).load());
}

void log_skipped_parts(const Checkpoint& checkpoint, const ModelConfig& config) {
  const int64_t skipped = skipped_tensor_count(checkpoint, config);
  if (skipped > 0)
    log::info("{}: {} tensors of other parts than the text model are skipped: {}", checkpoint.folder().string(),
              skipped, config.names.skipped_parts);
}

}  // namespace

Result<void> check_backend(const ModelConfig& config, const tensor::Backend& backend) {
  if (config.quantization != Quantization::kNone && !backend.packs_w8())
    return make_error(
        ErrorCode::kInvalidArgument,
        "{}: does not support 8-bit weights (quantization {}), wanted an unquantized model or another device",
        backend.description(), to_string(config.quantization));
  for (const auto& [feature, name] : tensor::kFeatureNames) {
    if (needs(config, feature) && !backend.computes(feature))
      return make_error(ErrorCode::kInvalidArgument, "{}: does not compute {}, which {} needs, wanted another device",
                        backend.description(), name, config.architecture);
  }
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
  load_parts(loader, backend, config, span, weights);
  if (span.first && options.position.rank == 0) log_skipped_parts(checkpoint, config);
  if (options.with_fingerprint) weights.fingerprint = loader.fingerprint().finish(config, span, options.position);
  return weights;
}

}  // namespace millrace::model
