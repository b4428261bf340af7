#include "model/weights.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <span>
#include <string>

#include "base/log.h"
#include "model/needed_features.h"
#include "model/recurrent_tensors.h"
#include "model/tensor_list.h"
#include "model/weight_packer.h"
#include "tensor/quantized_inputs.h"
#include "tensor/slices.h"

namespace millrace::model {
namespace {

using tensor::HostTensor;
using tensor::TermRange;

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
  LayerLoader(WeightPacker& packer, tensor::Backend& backend, const ModelConfig& config, int32_t index)
      : packer_(packer),
        backend_(backend),
        config_(config),
        names_(config.names),
        layer_(config.layer(index)),
        layout_(packer.layout().layer(index)),
        index_(index) {}

  LayerWeights load() {
    const LayerNorms& norms = layer_.norms;
    if (norms.before_attention)
      load_norm(names_.norm_before_layer(index_, config_.layer_count()), weights_.input_norm, weights_.input_norm_bias);
    if (layer_.recurrent) load_mixer();
    if (layer_.attends) load_attention();
    if (norms.after_attention) weights_.attention_norm = norm(weight(names_.attention_output_norm));
    if (norms.before_feed_forward && !layer_.parallel)
      load_norm(names_.plain(index_, names_.feed_forward_norm), weights_.mlp_norm, weights_.mlp_norm_bias);
    if (layer_.feed_forward.moe)
      load_experts(*layer_.feed_forward.moe);
    else if (layer_.has_feed_forward())
      load_feed_forward();
    if (norms.after_feed_forward) weights_.output_norm = norm(weight(names_.feed_forward_output_norm));
    if (layer_.input_width > 0) load_own_input();
    if (layer_.output_scale) weights_.output_scale = packer_.values(names_.plain(index_, names_.output_scale)).front();
    return std::move(weights_);
  }

 private:
  [[nodiscard]] std::string weight(std::string_view part) const { return names_.weight(index_, part); }
  [[nodiscard]] std::string bias(std::string_view part) const { return names_.bias(index_, part); }
  std::unique_ptr<tensor::DeviceVector> norm(const std::string& name) {
    return packer_.vector({name}, {.addend = norm_addend(config_)});
  }
  void load_norm(const std::string& name, std::unique_ptr<tensor::DeviceVector>& vector,
                 std::unique_ptr<tensor::DeviceVector>& bias) {
    vector = norm(name + ".weight");
    if (config_.norm == NormKind::kLayerInPlace) bias = packer_.vector({name + ".bias"});
  }

  void load_mixer() {
    const RecurrentTensors tensors = recurrent_tensors(config_, index_);
    weights_.recurrent = load_recurrent(packer_, backend_, config_, index_);
    weights_.recurrent->output = packer_.pack_sharded(tensors.output.name, layout_.mixer_outputs);
    if (tensors.output_bias) weights_.recurrent->output_bias = packer_.vector({tensors.output_bias->name});
  }

  void load_attention() {
    const AttentionConfig& attention = layer_.attention;
    if (attention.latent)
      weights_.latent = load_latent(attention);
    else
      load_projections(attention);
    if (attention.sinks) weights_.sinks = packer_.vector({names_.plain(index_, names_.sinks)});
    weights_.output = packer_.pack_sharded(weight(names_.output), layout_.head_outputs);
    if (attention.output_bias)
      weights_.output_bias = packer_.vector({bias(names_.output)}, {.factor = attention.bias_factor});
  }

  std::unique_ptr<LatentWeights> load_latent(const AttentionConfig& attention) {
    const LatentConfig& config = *attention.latent;
    auto latent = std::make_unique<LatentWeights>();
    if (config.query_rank > 0) {
      latent->query_a = packer_.pack({weight(names_.query_a)});
      if (config.bias) latent->query_a_bias = packer_.vector({bias(names_.query_a)});
      latent->query_norm = norm(weight(names_.query_a_norm));
    }
    latent->query = packer_.pack({weight(config.query_rank > 0 ? names_.query_b : names_.query)});
    latent->latent = packer_.pack({weight(names_.latent)});
    if (config.bias) latent->latent_bias = packer_.vector({bias(names_.latent)});
    latent->latent_norm = norm(weight(names_.latent_norm));
    latent->expansion =
        packer_.pack_latent_expansion(weight(names_.latent_expansion), latent_shape(attention, layout_.head_count()));
    if (config.indexer && !config.indexer->is_shared) latent->indexer = load_indexer();
    return latent;
  }

  std::unique_ptr<IndexerWeights> load_indexer() {
    auto indexer = std::make_unique<IndexerWeights>();
    indexer->query = packer_.pack_plain({weight(names_.index_query)});
    indexer->key = packer_.pack_plain({weight(names_.index_key)});
    indexer->norm = packer_.vector({weight(names_.index_norm)});
    indexer->norm_bias = packer_.vector({bias(names_.index_norm)});
    indexer->weights = packer_.pack_plain({weight(names_.index_weights)});
    return indexer;
  }

  void load_projections(const AttentionConfig& attention) {
    std::vector<std::string_view> parts{names_.query};
    if (!attention.keys_of) parts.push_back(names_.key);
    if (!attention.keys_of && !attention.values_are_keys) parts.push_back(names_.value);
    std::vector<std::string> matrices;
    std::vector<std::string> biases;
    for (const std::string_view part : parts) {
      matrices.push_back(weight(part));
      biases.push_back(bias(part));
    }
    weights_.qkv = packer_.pack(matrices);
    if (attention.output_gate) weights_.query_gate = packer_.pack({gate_name(config_, index_)});
    if (attention.qkv_bias) weights_.qkv_bias = packer_.vector(biases, {.factor = attention.bias_factor});
    if (attention.qk_norm == QkNorm::kUnit) {
      const std::vector<float> ones(static_cast<size_t>(attention.head_dim), 1.0f);
      weights_.q_norm = backend_.make_vector(ones);
      weights_.k_norm = backend_.make_vector(ones);
    } else if (attention.qk_norm != QkNorm::kNone) {
      weights_.q_norm = norm(weight(names_.query_norm));
      if (!attention.keys_of) weights_.k_norm = norm(weight(names_.key_norm));
    }
  }

  void load_own_input() {
    weights_.input_gate = packer_.pack({weight(names_.input_gate)});
    weights_.input_projection = packer_.pack({weight(names_.input_projection)});
    weights_.input_output_norm = norm(weight(names_.input_output_norm));
  }

  void load_feed_forward() {
    const FeedForwardConfig& feed_forward = layer_.feed_forward;
    load_gate_up(names_.gate, names_.up);
    if (feed_forward.bias)
      weights_.up_bias =
          feed_forward.gated ? packer_.vector({bias(names_.gate), bias(names_.up)}) : packer_.vector({bias(names_.up)});
    weights_.down = packer_.pack_sharded(weight(names_.down), layout_.features);
    if (feed_forward.bias) weights_.down_bias = packer_.vector({bias(names_.down)});
  }

  void load_gate_up(std::string_view gate, std::string_view up) {
    if (!layer_.feed_forward.gated) {
      weights_.up = packer_.pack({weight(up)});
    } else if (layer_.feed_forward.fuses_activation()) {
      weights_.gate_up = packer_.pack_gate_up(weight(gate), weight(up));
    } else {
      weights_.gate_up = packer_.pack({weight(gate), weight(up)});
    }
  }

  void load_experts(const MoeConfig& moe) {
    weights_.router = packer_.pack_plain({router_name(config_, index_)}, moe.f32_router);
    if (moe.router_bias) weights_.router_bias = packer_.vector({bias(names_.router)});
    tensor::Routing routing = moe.routing();
    if (moe.choice_bias) routing.choice_bias = packer_.values(names_.plain(index_, names_.choice_bias));
    if (moe.expert_scales) routing.expert_scales = packer_.values(names_.plain(index_, names_.expert_scales));
    if (moe.own_norms) load_expert_norms();
    if (moe.latent_size > 0) {
      weights_.experts_input = packer_.pack({weight(names_.experts_input)});
      weights_.experts_output = packer_.pack({weight(names_.experts_output)});
    }
    const auto experts = backend_.pack_experts(moe.expert_count,
                                               {.routing = routing,
                                                .activation = moe.activation,
                                                .gated = layer_.feed_forward.gated,
                                                .has_biases = moe.biases},
                                               packer_.layout().experts);
    const std::span<const ExpertPart> parts = expert_parts(layer_.feed_forward);
    std::vector<std::string> names;  // [owned experts, parts]
    const TermRange owned = layout_.experts.owned();
    for (auto expert = static_cast<int32_t>(owned.begin); expert < owned.end; ++expert) {
      for (const ExpertPart part : parts) names.push_back(expert_tensor_name(config_, index_, expert, part));
    }
    const ExpertPacking packing = packer_.expert_packing(index_, names);
    ExpertBiasReader biases(moe.intermediate_size, moe.input_size(config_.hidden_size));
    if (moe.biases)
      biases.set(packer_.values(fused_bias_name(config_, index_, ExpertPart::kGate)),
                 packer_.values(fused_bias_name(config_, index_, ExpertPart::kDown)));
    for (size_t i = 0; i < names.size(); i += parts.size()) {
      packer_.pack_expert(*experts, packing, std::span(names).subspan(i, parts.size()));
      if (moe.biases) biases.add_to(*experts, owned.begin + static_cast<int64_t>(i / parts.size()));
    }
    packer_.release_shared(names);
    weights_.experts = experts->finish();
    if (moe.shared) load_shared_expert(*moe.shared);
  }

  void load_expert_norms() {
    weights_.shared_output_norm = norm(weight(names_.shared_output_norm));
    weights_.experts_norm = norm(weight(names_.experts_norm));
    weights_.experts_output_norm = norm(weight(names_.experts_output_norm));
    // The router scales x by these numbers and hidden^-0.5 after a norm without weights.
    std::vector<float> scales = packer_.values(names_.plain(index_, names_.router_scale));
    const auto root = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.hidden_size)));
    for (float& scale : scales) scale *= root;
    weights_.router_norm = backend_.make_vector(scales);
  }

  void load_shared_expert(const SharedExpertConfig& shared) {
    load_gate_up(names_.shared_gate, names_.shared_up);
    weights_.down = packer_.pack_sharded(weight(names_.shared_down), layout_.features);
    if (shared.has_gate) weights_.shared_expert_gate = packer_.pack_plain({weight(names_.shared_expert_gate)});
  }

  WeightPacker& packer_;
  tensor::Backend& backend_;
  const ModelConfig& config_;
  const TensorNames& names_;
  const LayerConfig& layer_;
  const LayerLayout& layout_;
  int32_t index_;
  LayerWeights weights_;
};

/// Makes the table of per-layer inputs from rows in host memory, which a host backend reads in place. Elsewhere, or
/// where not all layers are the stage's and the table is decoded, it has the stage's layers only.
void load_layer_table(const WeightPacker& packer, tensor::Backend& backend, const ModelConfig& config, StageSpan span,
                      LayerInputWeights& weights) {
  const int64_t width = config.layer_inputs->width;
  HostTensor table = packer.host_table(config.names.layer_input_embedding, weights.decoded_table);
  if (span.layers.size() < config.layer_count() && (!backend.is_host() || weights.decoded_table)) {
    weights.slice = tensor::column_slice(table, {span.layers.begin * width, span.layers.end * width});
    table = weights.slice.tensor;
    weights.decoded_table.reset();
    weights.table_layers = span.layers.size();
    weights.table_first = 0;
  }
  table.shape = {int64_t{config.vocab_size} * weights.table_layers, width};
  weights.table = backend.make_embedding(table);
  if (backend.is_host()) return;
  weights.slice = {};
  weights.decoded_table.reset();
}

/// Loads what makes the own inputs of a stage's layers.
LayerInputWeights load_layer_inputs(WeightPacker& packer, tensor::Backend& backend, const ModelConfig& config,
                                    StageSpan span) {
  LayerInputWeights weights;
  weights.table_layers = config.layer_count();
  weights.table_first = span.layers.begin;
  weights.table = packer.make_decoding_table(config.names.layer_input_embedding, config.layer_count());
  if (!weights.table) load_layer_table(packer, backend, config, span, weights);
  packer.count(config.names.layer_input_embedding);
  weights.projection = packer.pack_plain({std::string(config.names.layer_input_projection)});
  std::vector<float> norm = packer.values(std::string(config.names.layer_input_norm));
  for (float& value : norm) value = (value + norm_addend(config)) * config.layer_inputs->join_factor;
  weights.norm = backend.make_vector(norm);
  return weights;
}

std::unique_ptr<tensor::PackedWeight> load_head(WeightPacker& packer, const ModelConfig& config, StageSpan span) {
  auto head = packer.pack_head(std::string(head_name(config)));
  if (config.embeds(span.first) && config.tied_embeddings)
    packer.release(head_name(config));  // counted as the embedding
  else
    packer.count(head_name(config));
  return head;
}

void load_parts(WeightPacker& packer, tensor::Backend& backend, const ModelConfig& config, StageSpan span,
                StageWeights& weights) {
  const TensorNames& names = config.names;
  if (config.embeds(span.first)) {
    weights.embedding = packer.make_embedding(names.embedding, weights.decoded_embedding);
    if (config.encoder) {
      weights.positions = packer.make_embedding(names.position_embedding, weights.decoded_positions);
      weights.types = packer.make_embedding(names.type_embedding, weights.decoded_types);
    }
  }
  if (span.last) {
    // The largest tensor first: while it is packed, memory holds it twice.
    if (config.has_output_head) weights.head = load_head(packer, config, span);
    const std::string norm = names.norm_before_layer(config.layer_count(), config.layer_count());
    weights.final_norm = packer.vector({norm + ".weight"}, {.addend = norm_addend(config)});
    if (config.norm == NormKind::kLayerInPlace) weights.final_norm_bias = packer.vector({norm + ".bias"});
  }
  if (config.layer_inputs && span.layers.size() > 0)
    weights.layer_inputs = load_layer_inputs(packer, backend, config, span);
  for (int32_t layer = span.layers.begin; layer < span.layers.end; ++layer)
    weights.layers.push_back(LayerLoader(packer, backend, config, layer).load());
}

void log_skipped_parts(const Checkpoint& checkpoint, const ModelConfig& config) {
  const int64_t skipped = skipped_tensor_count(checkpoint, config);
  if (skipped > 0)
    log::info("{}: {} tensors of other parts than the text model are skipped: {}", checkpoint.folder().string(),
              skipped, config.names.skipped_parts);
}

}  // namespace

Result<void> check_backend(const ModelConfig& config, const tensor::Backend& backend) {
  const bool has_4_bits = config.quantization == Quantization::kW4;
  const bool is_packed = has_4_bits ? backend.packs_codes() : backend.packs_w8();
  if (config.quantization != Quantization::kNone && !is_packed)
    return make_error(
        ErrorCode::kInvalidArgument,
        "{}: does not support {}-bit weights (quantization {}), wanted an unquantized model or another device",
        backend.description(), has_4_bits ? 4 : 8, to_string(config.quantization));
  if (activations_of(config.quantization) == tensor::W8Activations::kInt8 && !tensor::quantizes_inputs(backend))
    return make_error(ErrorCode::kInvalidArgument,
                      "{}: does not quantize the inputs of GEMMs (quantization {}), wanted w8, mxint8, w4 or another "
                      "device",
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
  WeightPacker packer(checkpoint, backend, config, options);
  RETURN_IF_ERROR(packer.resolve(stage_tensors(config, span)));
  RETURN_IF_ERROR(reject_unknown_tensors(checkpoint, config, span));
  StageWeights weights;
  weights.checkpoint_bytes = packer.total_bytes();
  load_parts(packer, backend, config, span, weights);
  if (span.first && options.position.rank == 0) log_skipped_parts(checkpoint, config);
  if (options.with_fingerprint) weights.fingerprint = packer.fingerprint().finish(config, span, options.position);
  return weights;
}

}  // namespace millrace::model
