#include "model/families/block.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

namespace millrace::model {
namespace {

/// Reads a member that a family may have a default for.
int32_t integer_with_default(FieldReader& fields, std::string_view key, std::optional<int32_t> fallback, int32_t low,
                             int32_t high) {
  return fallback ? fields.integer_or(key, *fallback, low, high) : fields.integer(key, low, high);
}

/// Refuses the models of these families whose attention looks ahead, since attention here is causal.
void refuse_bidirectional(FieldReader& fields) {
  if (!fields.flag_or("is_causal", true))
    fields.fail("is_causal false is not computed here, wanted a model with causal attention");
  // "vision" concerns the tokens of an image only, and texts have none.
  constexpr std::string_view kKey = "use_bidirectional_attention";
  const auto value = fields.find(kKey);
  if (value && value->is_string() && fields.text(kKey) == "vision") return;
  if (fields.flag_or(kKey, false))
    fields.fail("use_bidirectional_attention true is not computed here, wanted a model with causal attention");
}

int32_t read_head_dim(FieldReader& fields, const ModelConfig& config, const AttentionConfig& attention,
                      std::optional<int32_t> fallback) {
  const std::optional<int32_t> given = fields.optional_integer("head_dim", 2, kMaxHeadDim);
  int32_t head_dim = given.value_or(fallback.value_or(0));
  if (head_dim == 0) {
    if (config.hidden_size % attention.head_count != 0)
      fields.fail_with("hidden_size {} is not a multiple of num_attention_heads {}, and head_dim is missing",
                       config.hidden_size, attention.head_count);
    head_dim = std::max(config.hidden_size / attention.head_count, 1);
  }
  if (head_dim % 2 != 0 || head_dim > kMaxHeadDim)
    fields.fail_with("head_dim {} is not an even number from 2 to {}", head_dim, kMaxHeadDim);
  return head_dim;
}

AttentionConfig read_attention(FieldReader& fields, const ModelConfig& config, const BlockDefaults& defaults) {
  AttentionConfig attention;
  attention.head_count = integer_with_default(fields, "num_attention_heads", defaults.head_count, 1, kMaxHeadCount);
  attention.kv_head_count =
      fields.integer_or("num_key_value_heads", defaults.kv_head_count.value_or(attention.head_count), 1, kMaxHeadCount);
  if (attention.head_count % attention.kv_head_count != 0)
    fields.fail_with("num_attention_heads {} is not a multiple of num_key_value_heads {}", attention.head_count,
                     attention.kv_head_count);
  attention.head_dim = read_head_dim(fields, config, attention, defaults.head_dim);
  attention.scale = static_cast<float>(1.0 / std::sqrt(attention.head_dim));
  if (attention.query_width() > kMaxWidth)
    fields.fail_with("num_attention_heads {} times head_dim {} is above {}", attention.head_count, attention.head_dim,
                     kMaxWidth);
  return attention;
}

/// Limits the context of a model made for dual chunk attention to the one up to which it equals plain attention: the
/// one that it was trained on.
void read_dual_chunks(FieldReader& fields, ModelConfig& config) {
  constexpr const char* kKey = "dual_chunk_attention_config";
  const auto object = fields.object(kKey);
  if (!object) return;
  FieldReader chunks(fields.source() + ": " + kKey, *object);
  const auto trained = chunks.optional_integer("original_max_position_embeddings", 1, kMaxPosition);
  const int32_t chunk = chunks.integer_or("chunk_size", config.max_position, 1, kMaxPosition);
  const int32_t local = chunks.integer_or("local_size", 0, 0, kMaxPosition);
  if (!trained && local >= chunk) chunks.fail_with("local_size {} is not below chunk_size {}", local, chunk);
  config.max_plain_attention_context = trained.value_or(chunk - local);
  fields.take_error_of(chunks);
}

/// Members that change the arithmetic of the families that have them.
constexpr std::array<std::string_view, 28> kArithmetic{"attention_multiplier",
                                                       "attn_logit_softcapping",
                                                       "attn_temperature_tuning",
                                                       "clip_qkv",
                                                       "dim_model_base",
                                                       "embedding_multiplier",
                                                       "final_logit_softcapping",
                                                       "hidden_size_per_layer_input",
                                                       "llama_4_scaling",
                                                       "logit_scale",
                                                       "logits_scaling",
                                                       "moe_intermediate_size",
                                                       "n_routed_experts",
                                                       "n_shared_experts",
                                                       "no_rope_layers",
                                                       "num_experts",
                                                       "num_local_experts",
                                                       "qk_layernorm",
                                                       "query_pre_attn_scalar",
                                                       "residual_multiplier",
                                                       "rope_local_base_freq",
                                                       "scale_depth",
                                                       "scale_emb",
                                                       "swiglu_limit",
                                                       "use_mrope",
                                                       "use_parallel_residual",
                                                       "use_qk_norm",
                                                       "use_qkv_bias"};

bool changes_nothing(JsonValue value) {
  if (value.is_null()) return true;
  if (value.is_bool()) return !value.is_true();
  if (JsonArray array; value.get(array)) return array.empty();
  double number = 0;
  return value.get(number) && (number == 0.0 || number == 1.0);
}

/// Returns whether a member names what the layers have anyway, as configs written by other versions of a library do.
bool is_said_twice(std::string_view key, JsonValue value, const ModelConfig& config) {
  if (key == "use_qk_norm" || key == "qk_layernorm")
    return std::ranges::all_of(config.layers, [](const LayerConfig& layer) {
      return !layer.attends || layer.attention.qk_norm != QkNorm::kNone;
    });
  const bool is_count = key == "num_experts" || key == "num_local_experts" || key == "n_routed_experts";
  int64_t number = 0;
  if (!value.get(number) || (!is_count && key != "moe_intermediate_size")) return false;
  bool has_experts = false;
  for (const LayerConfig& layer : config.layers) {
    const std::optional<MoeConfig>& moe = layer.feed_forward.moe;
    if (!moe) continue;
    has_experts = true;
    if (number != (is_count ? moe->expert_count : moe->intermediate_size)) return false;
  }
  return has_experts;
}

}  // namespace

LayerConfig read_block(FieldReader& fields, ModelConfig& config, const BlockDefaults& defaults) {
  refuse_bidirectional(fields);
  config.vocab_size = integer_with_default(fields, "vocab_size", defaults.vocab_size, 1, kMaxVocab);
  config.hidden_size = fields.integer("hidden_size", 1, kMaxWidth);
  config.max_position = integer_with_default(fields, defaults.max_position_key, defaults.max_position, 1, kMaxPosition);
  config.norm_epsilon = static_cast<float>(fields.number_or(defaults.epsilon_key, defaults.epsilon, 0.0, 1.0));
  config.tied_embeddings = fields.flag_or("tie_word_embeddings", defaults.tied_embeddings);
  read_dual_chunks(fields, config);
  const int32_t layer_count =
      integer_with_default(fields, "num_hidden_layers", defaults.layer_count, 1, kMaxLayerCount);
  LayerConfig layer;
  layer.feed_forward.width =
      integer_with_default(fields, "intermediate_size", defaults.intermediate_size, 1, kMaxIntermediate);
  layer.attention = read_attention(fields, config, defaults);
  layer.feed_forward.bias = fields.flag_or("mlp_bias", false);
  if (layer.feed_forward.bias && !defaults.allows_mlp_bias) fields.fail("mlp_bias true is not supported, wanted false");
  config.layers.assign(static_cast<size_t>(layer_count), layer);
  return layer;
}

void require_activation(FieldReader& fields, std::string_view wanted, std::initializer_list<std::string_view> keys) {
  const auto key = std::ranges::find_if(keys, [&](std::string_view each) { return fields.has(each); });
  if (key == keys.end()) return;
  const std::string found = fields.text_or(*key, wanted);
  if (found != wanted) fields.fail_with("{} '{}' is not supported, wanted '{}'", *key, found, wanted);
}

void require_text(FieldReader& fields, std::string_view key, std::string_view wanted) {
  const std::string found = fields.text_or(key, wanted);
  if (found != wanted) fields.fail_with("{} '{}' is not supported, wanted '{}'", key, found, wanted);
}

float read_multiplier(FieldReader& fields, std::string_view key) {
  return static_cast<float>(fields.number_or(key, 1.0, 1e-9, 1e9));
}

int32_t add_rope(FieldReader& fields, ModelConfig& config, const LayerConfig& layer, RopeReading reading) {
  reading.max_position = config.max_position;
  reading.head_dim = layer.attention.head_dim;
  config.ropes.push_back(parse_rope(fields, reading));
  return static_cast<int32_t>(config.ropes.size()) - 1;
}

std::vector<bool> read_layer_types(FieldReader& fields, const ModelConfig& config,
                                   const std::function<bool(int32_t layer)>& slides) {
  std::vector<bool> sliding;
  for (int32_t layer = 0; layer < config.layer_count(); ++layer) sliding.push_back(slides(layer));
  if (!fields.has("layer_types")) return sliding;
  const std::vector<std::string> types = fields.strings("layer_types");
  if (types.size() != sliding.size()) {
    fields.fail_with("layer_types names {} layers, num_hidden_layers {}", types.size(), sliding.size());
    return sliding;
  }
  for (size_t layer = 0; layer < types.size(); ++layer) {
    sliding[layer] = types[layer] == "sliding_attention";
    if (!sliding[layer] && types[layer] != "full_attention")
      fields.fail_with("layer_types names '{}' for layer {}, wanted full_attention or sliding_attention", types[layer],
                       layer);
  }
  return sliding;
}

std::vector<bool> read_recurrent_layers(FieldReader& fields, const ModelConfig& config,
                                        std::initializer_list<std::string_view> names,
                                        const std::function<bool(int32_t layer)>& is_recurrent) {
  std::vector<bool> recurrent;
  for (int32_t layer = 0; layer < config.layer_count(); ++layer) recurrent.push_back(is_recurrent(layer));
  const char* key = fields.has("layers_block_type") ? "layers_block_type" : "layer_types";
  if (!fields.has(key)) return recurrent;
  const std::vector<std::string> types = fields.strings(key);
  if (types.size() != recurrent.size()) {
    fields.fail_with("{} names {} layers, num_hidden_layers {}", key, types.size(), recurrent.size());
    return recurrent;
  }
  for (size_t layer = 0; layer < types.size(); ++layer) {
    recurrent[layer] = std::ranges::find(names, types[layer]) != names.end();
    if (!recurrent[layer] && types[layer] != "full_attention" && types[layer] != "attention")
      fields.fail_with("{} names '{}' for layer {}, wanted full_attention or {}", key, types[layer], layer,
                       *names.begin());
  }
  return recurrent;
}

void set_recurrent_layers(ModelConfig& config, const LayerConfig& layer, const RecurrentConfig& mixer,
                          const std::vector<bool>& recurrent) {
  for (size_t index = 0; index < config.layers.size(); ++index) {
    config.layers[index] = layer;
    if (!recurrent[index]) continue;
    config.layers[index].attends = false;
    config.layers[index].recurrent = mixer;
  }
}

int32_t read_conv_width(FieldReader& fields, std::string_view key, int32_t fallback) {
  constexpr int32_t kMaxConvWidth = 8;
  return fields.integer_or(key, fallback, 2, kMaxConvWidth);
}

void set_layers(FieldReader& fields, ModelConfig& config, const LayerConfig& layer, int32_t window,
                const std::vector<bool>& slides) {
  for (size_t index = 0; index < config.layers.size(); ++index) {
    config.layers[index] = layer;
    if (!slides[index]) continue;
    config.layers[index].attention.window = window;
    if (window == 0)
      fields.fail_with("layer_types names sliding_attention for layer {}, but no sliding_window is in use", index);
  }
}

void read_experts_per_token(FieldReader& fields, std::string_view count_key, MoeConfig& moe, std::string_view key) {
  moe.experts_per_token = fields.integer(key, 1, kMaxExpertCount);
  if (moe.experts_per_token > moe.expert_count)
    fields.fail_with("{} {} is above {} {}", key, moe.experts_per_token, count_key, moe.expert_count);
}

MoeConfig read_local_experts(FieldReader& fields, const LayerConfig& layer, std::optional<int32_t> count) {
  MoeConfig moe;
  moe.expert_count = integer_with_default(fields, "num_local_experts", count, 1, kMaxExpertCount);
  read_experts_per_token(fields, "num_local_experts", moe);
  moe.intermediate_size = layer.feed_forward.width;
  moe.renormalize = true;
  return moe;
}

void read_shared_experts(FieldReader& fields, std::string_view key, int32_t fallback, MoeConfig& moe) {
  const int32_t count = fields.integer_or(key, fallback, 0, kMaxShared);
  if (count > 0) moe.shared = {.width = count * moe.intermediate_size};
}

MoeConfig read_grouped_experts(FieldReader& fields, const GroupedExpertKeys& keys) {
  MoeConfig moe;
  moe.expert_count = fields.integer(keys.count, 1, kMaxExpertCount);
  read_experts_per_token(fields, keys.count, moe, keys.per_token);
  moe.intermediate_size = fields.integer("moe_intermediate_size", 1, kMaxIntermediate / kMaxShared);
  moe.score = tensor::RouterScore::kSigmoid;
  moe.renormalize = fields.flag_or(keys.renormalize, true);
  moe.sum_epsilon = 1e-20;
  moe.weight_scale = static_cast<float>(fields.number_or("routed_scaling_factor", 1.0, 0.0, 1e6));
  moe.choice_bias = true;
  moe.f32_router = true;
  moe.group_score = tensor::GroupScore::kSumOfTwo;
  moe.group_count = fields.integer_or(keys.groups, 1, 1, kMaxExpertCount);
  moe.groups_per_token = fields.integer_or("topk_group", 1, 1, kMaxExpertCount);
  if (moe.expert_count % moe.group_count != 0 || moe.groups_per_token > moe.group_count ||
      moe.expert_count / moe.group_count * moe.groups_per_token < moe.experts_per_token)
    fields.fail_with("{} experts in {} {} groups, of which topk_group {} give {} {}, do not fit", moe.expert_count,
                     keys.groups, moe.group_count, moe.groups_per_token, keys.per_token, moe.experts_per_token);
  read_shared_experts(fields, keys.shared, 1, moe);
  return moe;
}

void set_dense_then_sparse(ModelConfig& config, const LayerConfig& layer, const MoeConfig& moe, int32_t dense_count) {
  for (int32_t index = 0; index < config.layer_count(); ++index) {
    LayerConfig& own = config.layers[static_cast<size_t>(index)];
    own = layer;
    if (index >= dense_count) own.feed_forward.moe = moe;
  }
}

void set_experts_by_layer_types(FieldReader& fields, ModelConfig& config, const MoeConfig& moe, int32_t dense_count) {
  std::vector<std::string> types = fields.strings("mlp_layer_types");
  if (!fields.has("mlp_layer_types")) {
    for (int32_t index = 0; index < config.layer_count(); ++index)
      types.emplace_back(index < dense_count ? "dense" : "sparse");
  }
  if (types.size() != config.layers.size())
    return fields.fail_with("mlp_layer_types names {} layers, num_hidden_layers {}", types.size(),
                            config.layers.size());
  for (size_t index = 0; index < types.size(); ++index) {
    if (types[index] == "sparse")
      config.layers[index].feed_forward.moe = moe;
    else if (types[index] != "dense")
      fields.fail_with("mlp_layer_types names '{}' for layer {}, wanted dense or sparse", types[index], index);
  }
}

void refuse_unread_arithmetic(FieldReader& fields, const ModelConfig& config) {
  for (const std::string_view key : kArithmetic) {
    if (fields.was_read(key)) continue;
    const auto value = fields.find(key);
    if (value && !changes_nothing(*value) && !is_said_twice(key, *value, config))
      fields.fail_with("{} {} is not computed here, wanted a model without it", key, json_excerpt(*value));
  }
}

}  // namespace millrace::model
