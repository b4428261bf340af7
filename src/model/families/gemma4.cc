#include <charconv>
#include <cmath>
#include <limits>

#include "model/families/families.h"
#include "model/families/gemma.h"
#include "tensor/dtype.h"

namespace millrace::model {
namespace {

constexpr int32_t kMaxFullHeadDim = 512;  // limit of the attention kernels, and the default
constexpr double kFullTheta = 1e6;
constexpr double kSlidingTheta = 1e4;
constexpr int32_t kPattern = 6;  // layers; the last of them sees all tokens

/// The heads of the layers that see all tokens.
struct FullHeads {
  int32_t head_dim = 0;
  int32_t kv_head_count = 0;
  friend bool operator==(const FullHeads&, const FullHeads&) = default;
};

/// Reads the inputs of the layers' own, which the small models have. Factors are rounded as the checkpoint's dtype
/// rounds them.
void read_layer_inputs(FieldReader& fields, ModelConfig& config, int32_t silent, LayerConfig& layer) {
  layer.input_width = fields.integer_or("hidden_size_per_layer_input", silent, 0, kMaxWidth / kMaxLayerCount);
  const int32_t rows = fields.integer_or("vocab_size_per_layer_input", 262144, 1, kMaxVocab);
  if (layer.input_width == 0) return;
  if (rows != config.vocab_size)
    fields.fail_with("vocab_size_per_layer_input {} is not vocab_size {}", rows, config.vocab_size);
  const int64_t lookups = int64_t{config.vocab_size} * config.layer_count();
  if (lookups > std::numeric_limits<int32_t>::max())
    fields.fail_with("vocab_size_per_layer_input {} for {} layers is above {} rows", rows, config.layer_count(),
                     std::numeric_limits<int32_t>::max());
  const auto root = static_cast<float>(std::sqrt(static_cast<double>(layer.input_width)));
  config.layer_inputs = {
      .width = layer.input_width,
      .projection_factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.hidden_size))),
      .table_factor = config.dtype == tensor::DType::kBF16 ? tensor::BFloat16::from_float(root).to_float() : root,
      .join_factor = static_cast<float>(std::sqrt(0.5))};
}

/// Makes the last layers see the keys and values of the last layer of their kind before them.
void share_keys(FieldReader& fields, ModelConfig& config, const std::vector<bool>& slides) {
  constexpr const char* kKey = "num_kv_shared_layers";
  const int32_t shared = fields.integer_or(kKey, 0, 0, kMaxLayerCount);
  const bool doubles = fields.flag_or("use_double_wide_mlp", false);
  if (shared == 0) return;
  const int32_t first = config.layer_count() - shared;
  for (int32_t index = std::max(first, 0); index < config.layer_count(); ++index) {
    LayerConfig& layer = config.layers[static_cast<size_t>(index)];
    int32_t source = first - 1;
    while (source >= 0 && slides[static_cast<size_t>(source)] != slides[static_cast<size_t>(index)]) --source;
    if (source < 0)
      return fields.fail_with("{} {} leaves layer {} without a layer before them whose keys it could see", kKey, shared,
                              index);
    layer.attention.keys_of = source;
    if (!doubles) continue;
    layer.feed_forward.width *= 2;
    if (layer.feed_forward.moe) layer.feed_forward.moe->shared->width *= 2;
  }
}

/// Reads the heads of full layers from per_layer_config, which has an object for the number of each of them.
FullHeads read_per_layer(FieldReader& fields, JsonObject object, const std::vector<bool>& slides, FullHeads heads) {
  std::vector<bool> named(slides.size(), false);
  bool is_first = true;
  for (const auto member : object) {
    size_t layer = slides.size();
    const std::string_view number = member.key;
    const char* const number_end = number.data() + number.size();
    const auto [stop, failure] = std::from_chars(number.data(), number_end, layer);
    const bool is_number = failure == std::errc() && stop == number_end;
    JsonObject own;
    if (!is_number || layer >= slides.size() || slides[layer] || !member.value.get(own)) {
      fields.fail_with("per_layer_config names '{}', wanted the number of a layer with full_attention", number);
      return heads;
    }
    FieldReader reader(fmt::format("{}: per_layer_config: {}", fields.source(), number), own);
    const FullHeads read{
        .head_dim = reader.integer_or("head_dim", heads.head_dim, 2, kMaxFullHeadDim),
        .kv_head_count = reader.integer_or("num_key_value_heads", heads.kv_head_count, 1, kMaxHeadCount)};
    fields.take_error_of(reader);
    if (!is_first && read != heads)
      fields.fail_with("per_layer_config gives layer {} other heads than the layers before it", number);
    heads = read;
    named[layer] = true;
    is_first = false;
  }
  for (size_t layer = 0; layer < slides.size(); ++layer) {
    if (!slides[layer] && !named[layer]) fields.fail_with("per_layer_config lacks layer {}", layer);
  }
  return heads;
}

FullHeads read_full_heads(FieldReader& fields, const AttentionConfig& sliding, const std::vector<bool>& slides) {
  FullHeads heads{.head_dim = fields.integer_or("global_head_dim", kMaxFullHeadDim, 2, kMaxFullHeadDim),
                  .kv_head_count = sliding.kv_head_count};
  const auto kv_heads = fields.optional_integer("num_global_key_value_heads", 1, kMaxHeadCount);
  if (kv_heads && fields.flag_or("attention_k_eq_v", false)) heads.kv_head_count = *kv_heads;
  if (const auto object = fields.object("per_layer_config")) {
    heads.kv_head_count = sliding.kv_head_count;
    heads = read_per_layer(fields, *object, slides, heads);
  }
  if (heads.head_dim % 2 != 0) fields.fail_with("global_head_dim {} is odd", heads.head_dim);
  if (sliding.head_count % heads.kv_head_count != 0)
    fields.fail_with("num_attention_heads {} is not a multiple of num_global_key_value_heads {}", sliding.head_count,
                     heads.kv_head_count);
  return heads;
}

/// Returns the rotation of full layers: of all pairs of channels, of which only the first turn.
int32_t add_full_rope(FieldReader& fields, ModelConfig& config, const LayerConfig& layer) {
  const int32_t index = add_rope(fields, config, layer, {.theta = kFullTheta, .layer_type = "full_attention"});
  RopeConfig& rope = config.ropes.back();
  if (!fields.has("rope_parameters")) {
    rope.kind = RopeKind::kProportional;
    rope.rotated_pairs = layer.attention.head_dim / 8;
  }
  rope.rotary_dim = layer.attention.head_dim;
  return index;
}

/// F(x) = rms(MLP(rms(x))) + rms(Experts(rms(x))), where the router has a norm of its own and a scale per expert.
MoeConfig read_experts(FieldReader& fields, ModelConfig& config, const LayerConfig& layer) {
  constexpr const char* kCount = "num_experts";
  MoeConfig moe;
  moe.expert_count = fields.integer(kCount, 1, kMaxExpertCount);
  read_experts_per_token(fields, kCount, moe, "top_k_experts");
  moe.intermediate_size = fields.integer("moe_intermediate_size", 1, kMaxIntermediate / kMaxShared);
  moe.renormalize = true;
  moe.activation.function = tensor::GatedFunction::kGeluTanh;
  moe.shared = {.width = layer.feed_forward.width};
  moe.own_norms = moe.expert_scales = true;
  TensorNames& names = config.names;
  names.router = "router.proj";
  names.router_scale = "router.scale";
  names.expert_scales = "router.per_expert_scale";
  names.experts = "experts.";
  names.expert_storage = ExpertStorage::kRows;
  names.fused_experts_gate_up = "experts.gate_up_proj";
  names.fused_experts_down = "experts.down_proj";
  names.shared_gate = names.gate;
  names.shared_up = names.up;
  names.shared_down = names.down;
  names.shared_output_norm = "post_feedforward_layernorm_1";
  names.experts_norm = "pre_feedforward_layernorm_2";
  names.experts_output_norm = "post_feedforward_layernorm_2";
  return moe;
}

/// Gemma's block with norms of the heads of q, k and v, unscaled scores, and a number that multiplies each layer's
/// output. Full layers have larger heads than sliding ones, and values that may be keys.
void describe_text(FieldReader& fields, ModelConfig& config, const BlockDefaults& defaults, int32_t window,
                   int32_t per_layer_input) {
  LayerConfig layer = read_gemma_block(fields, config, defaults);
  read_layer_inputs(fields, config, per_layer_input, layer);
  config.norm = NormKind::kRms;
  config.logit_soft_cap = read_gemma_cap(fields, "final_logit_softcapping", 0.0);
  config.names.output_scale = "layer_scalar";
  layer.output_scale = true;
  layer.attention.scale = 1.0f;
  layer.attention.qk_norm = QkNorm::kPerHead;
  layer.attention.value_norm = true;
  if (fields.flag_or("enable_moe_block", false)) layer.feed_forward.moe = read_experts(fields, config, layer);
  std::vector<bool> slides =
      read_layer_types(fields, config, [](int32_t index) { return (index + 1) % kPattern != 0; });
  slides.back() = false;

  LayerConfig full = layer;
  const FullHeads heads = read_full_heads(fields, layer.attention, slides);
  full.attention.head_dim = heads.head_dim;
  full.attention.kv_head_count = heads.kv_head_count;
  full.attention.values_are_keys = fields.flag_or("attention_k_eq_v", false);
  full.attention.rope = add_full_rope(fields, config, full);
  layer.attention.rope = add_rope(fields, config, layer, {.theta = kSlidingTheta, .layer_type = "sliding_attention"});
  config.ropes.back().rotary_dim = layer.attention.head_dim;
  layer.attention.window = fields.integer_or("sliding_window", window, 1, kMaxPosition);
  for (size_t index = 0; index < slides.size(); ++index) config.layers[index] = slides[index] ? layer : full;
  share_keys(fields, config, slides);
}

constexpr std::string_view kOtherParts =
    "model.vision_tower. model.audio_tower. model.embed_vision. model.embed_audio.";

}  // namespace

void describe_gemma4(FieldReader& fields, ModelConfig& config) {
  describe_text(fields, config, {.vocab_size = 262144, .max_position = 131072}, 512, 256);
}

/// The text part of Gemma 4 with images and sound.
void describe_gemma4_wrapper(FieldReader& fields, ModelConfig& config) {
  describe_gemma4(fields, config);
  config.names.skipped_parts = kOtherParts;
}

/// Gemma 4 whose images and sound have no towers of their own.
void describe_gemma4_unified(FieldReader& fields, ModelConfig& config) {
  describe_text(fields, config, {.vocab_size = 262144, .max_position = 262144}, 1024, 0);
}

/// The text part of Gemma 4 Unified with images and sound.
void describe_gemma4_unified_wrapper(FieldReader& fields, ModelConfig& config) {
  describe_gemma4_unified(fields, config);
  config.names.skipped_parts = kOtherParts;
}

}  // namespace millrace::model
