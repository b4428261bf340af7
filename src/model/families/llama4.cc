#include "model/families/block.h"
#include "model/families/families.h"

namespace millrace::model {
namespace {

constexpr int32_t kChunkUnit = 64;  // attention reads keys in blocks of this size

/// Returns a flag that some configs spell as a number.
bool flag_or_number(FieldReader& fields, std::string_view key, bool fallback) {
  const auto value = fields.find(key);
  double number = 0;
  if (value && value->get(number)) return number != 0;
  return fields.flag_or(key, fallback);
}

/// Returns for each layer whether a list of numbers names it, or else what `silent` says.
std::vector<bool> named_layers(FieldReader& fields, const ModelConfig& config, std::string_view key,
                               const std::function<bool(int32_t layer)>& silent) {
  std::vector<bool> named;
  for (int32_t layer = 0; layer < config.layer_count(); ++layer) named.push_back(silent(layer));
  if (!fields.has(key)) return named;
  const std::vector<int32_t> layers = fields.integers(key, 0, config.layer_count() - 1);
  named.assign(named.size(), false);
  for (const int32_t layer : layers) named[static_cast<size_t>(layer)] = true;
  return named;
}

/// Returns for each layer whether it rotates q and k: by no_rope_layers, whose ones mean that it does, or by interval.
std::vector<bool> read_rotated_layers(FieldReader& fields, const ModelConfig& config) {
  const int32_t interval = fields.integer_or("no_rope_layer_interval", 4, 1, kMaxLayerCount);
  std::vector<bool> rotated;
  for (int32_t layer = 0; layer < config.layer_count(); ++layer) rotated.push_back((layer + 1) % interval != 0);
  const std::vector<int32_t> flags = fields.integers("no_rope_layers", 0, 1);
  if (flags.empty()) return rotated;
  if (flags.size() != rotated.size()) {
    fields.fail_with("no_rope_layers has {} numbers, wanted {}, one per layer", flags.size(), rotated.size());
    return rotated;
  }
  for (size_t layer = 0; layer < flags.size(); ++layer) rotated[layer] = flags[layer] != 0;
  return rotated;
}

/// Returns the tokens of a chunk; 0: attention sees all tokens.
int32_t read_chunk_size(FieldReader& fields) {
  constexpr const char* kKey = "attention_chunk_size";
  const int32_t size = fields.integer_or(kKey, fields.has_key(kKey) ? 0 : 8192, 1, kMaxPosition);
  if (size % kChunkUnit != 0) fields.fail_with("{} {} is not a multiple of {}", kKey, size, kChunkUnit);
  return size;
}

/// Returns for each layer whether its attention is chunked: by layer_types, or else as `chunked` says, which has the
/// layers that rotate.
std::vector<bool> read_chunked_layers(FieldReader& fields, int32_t chunk_size, std::vector<bool> chunked) {
  if (chunk_size == 0) chunked.assign(chunked.size(), false);
  const std::vector<std::string> types =
      fields.has("layer_types") ? fields.strings("layer_types") : std::vector<std::string>();
  if (types.empty()) return chunked;
  if (types.size() != chunked.size()) {
    fields.fail_with("layer_types names {} layers, num_hidden_layers {}", types.size(), chunked.size());
    return chunked;
  }
  for (size_t layer = 0; layer < types.size(); ++layer) {
    chunked[layer] = types[layer] == "chunked_attention";
    if (!chunked[layer] && types[layer] != "full_attention")
      fields.fail_with("layer_types names '{}' for layer {}, wanted full_attention or chunked_attention", types[layer],
                       layer);
    if (chunked[layer] && chunk_size == 0)
      fields.fail_with("layer_types names chunked_attention for layer {}, but attention_chunk_size is null", layer);
  }
  return chunked;
}

/// Reads experts whose inputs a sigmoid weighs, with a shared one of their width.
MoeConfig read_experts(FieldReader& fields, const LayerConfig& layer) {
  MoeConfig moe = read_local_experts(fields, layer, 16);
  moe.renormalize = false;
  moe.score = tensor::RouterScore::kSigmoid;
  moe.weighs_inputs = true;
  moe.shared = {.width = moe.intermediate_size};
  return moe;
}

void name_tensors(TensorNames& names) {
  names.gate = "feed_forward.gate_proj";
  names.up = "feed_forward.up_proj";
  names.down = "feed_forward.down_proj";
  names.router = "feed_forward.router";
  names.experts = "feed_forward.experts.";
  names.expert_storage = ExpertStorage::kColumnHalves;
  names.fused_experts_gate_up = "feed_forward.experts.gate_up_proj";
  names.fused_experts_down = "feed_forward.experts.down_proj";
  names.shared_gate = "feed_forward.shared_expert.gate_proj";
  names.shared_up = "feed_forward.shared_expert.up_proj";
  names.shared_down = "feed_forward.shared_expert.down_proj";
}

}  // namespace

/// Llama's block with experts in every layer or every other one. Three layers of four rotate q and k, in neighbouring
/// pairs, normalise them and see the tokens of their chunk. The others see all tokens without a rotation, and their
/// queries grow with the logarithm of the position.
void describe_llama4(FieldReader& fields, ModelConfig& config) {
  require_activation(fields, "silu");
  LayerConfig layer =
      read_block(fields, config, {.kv_head_count = 8, .head_dim = 128, .intermediate_size = 8192, .epsilon = 1e-5});
  layer.attention.qkv_bias = layer.attention.output_bias = fields.flag_or("attention_bias", false);
  const std::vector<bool> rotated = read_rotated_layers(fields, config);
  const int32_t chunk_size = read_chunk_size(fields);
  const std::vector<bool> chunked = read_chunked_layers(fields, chunk_size, rotated);
  const int32_t step = fields.integer_or("interleave_moe_layer_step", 1, 1, kMaxLayerCount);
  const std::vector<bool> sparse =
      named_layers(fields, config, "moe_layers", [step](int32_t index) { return (index + 1) % step == 0; });
  const MoeConfig moe = read_experts(fields, layer);
  layer.feed_forward.width = fields.integer_or("intermediate_size_mlp", 16384, 1, kMaxIntermediate);
  const bool has_norm = fields.flag_or("use_qk_norm", true);
  std::optional<QueryScaling> scaling;
  const int32_t period = fields.integer_or("floor_scale", 8192, 1, kMaxPosition);
  const double beta = fields.number_or("attn_scale", 0.1, 0.0, 1e3);
  if (flag_or_number(fields, "attn_temperature_tuning", true))
    scaling = {.beta = beta, .original_max_position = period, .offset = 1};
  const int32_t rope = add_rope(fields, config, layer, {.theta = 500000.0});
  config.ropes.back().interleaved = true;
  name_tensors(config.names);
  for (size_t index = 0; index < config.layers.size(); ++index) {
    LayerConfig& own = config.layers[index];
    own = layer;
    if (sparse[index]) own.feed_forward.moe = moe;
    if (rotated[index]) own.attention.rope = rope;
    if (rotated[index] && has_norm) own.attention.qk_norm = QkNorm::kUnit;
    if (!rotated[index]) own.attention.query_scaling = scaling;
    own.attention.chunked = chunked[index];
    if (chunked[index]) own.attention.window = chunk_size;
  }
}

/// The text part of Llama 4 with images.
void describe_llama4_wrapper(FieldReader& fields, ModelConfig& config) {
  describe_llama4(fields, config);
  config.names.skipped_parts = "vision_model. multi_modal_projector. model.vision_model. model.multi_modal_projector.";
}

}  // namespace millrace::model
