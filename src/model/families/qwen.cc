#include "model/families/qwen.h"

#include <algorithm>

#include "model/families/block.h"
#include "model/families/families.h"

namespace millrace::model {
namespace {

constexpr std::string_view kQwenVisionParts = "model.visual. visual.";

/// Returns the window of the layers that slide; 0: none may.
int32_t read_qwen_window(FieldReader& fields) {
  const int32_t silent = fields.has_key("sliding_window") ? 0 : 4096;
  const int32_t window = fields.integer_or("sliding_window", silent, 1, kMaxPosition);
  return fields.flag_or("use_sliding_window", false) ? window : 0;
}

/// Gives windows to the layers from `first` on.
void set_qwen_layers(FieldReader& fields, ModelConfig& config, const LayerConfig& layer, int32_t first) {
  const int32_t window = read_qwen_window(fields);
  set_layers(fields, config, layer, window,
             read_layer_types(fields, config, [&](int32_t index) { return window > 0 && index >= first; }));
}

int32_t read_max_window_layers(FieldReader& fields) {
  return fields.integer_or("max_window_layers", 28, 0, kMaxPosition);
}

LayerConfig read_qwen3_block(FieldReader& fields, ModelConfig& config, const BlockDefaults& defaults) {
  require_activation(fields, "silu");
  LayerConfig layer = read_block(fields, config, defaults);
  layer.attention.qkv_bias = layer.attention.output_bias = fields.flag_or("attention_bias", false);
  layer.attention.qk_norm = QkNorm::kPerHead;
  layer.attention.rope = add_rope(fields, config, layer);
  return layer;
}

}  // namespace

void read_qwen_experts(FieldReader& fields, MoeConfig& moe, bool renormalize) {
  // transformers 5 writes the second name.
  const bool renamed = !fields.has("num_experts") && fields.has("num_local_experts");
  const char* count_key = renamed ? "num_local_experts" : "num_experts";
  moe.expert_count = fields.integer(count_key, 1, kMaxExpertCount);
  const int32_t other = fields.integer_or("num_local_experts", moe.expert_count, 1, kMaxExpertCount);
  if (other != moe.expert_count)
    fields.fail_with("num_experts {} and num_local_experts {} differ", moe.expert_count, other);
  read_experts_per_token(fields, count_key, moe);
  moe.intermediate_size = fields.integer("moe_intermediate_size", 1, kMaxIntermediate);
  moe.renormalize = fields.flag_or("norm_topk_prob", renormalize);
}

void set_qwen_experts(FieldReader& fields, ModelConfig& config, const MoeConfig& moe) {
  constexpr int32_t kMaxStep = 1024;
  const int32_t step = fields.integer_or("decoder_sparse_step", 1, 1, kMaxStep);
  const std::vector<int32_t> dense = fields.integers("mlp_only_layers", 0, kMaxStep);
  for (int32_t index = 0; index < config.layer_count(); ++index) {
    if ((index + 1) % step == 0 && std::ranges::find(dense, index) == dense.end())
      config.layers[static_cast<size_t>(index)].feed_forward.moe = moe;
  }
}

void read_qwen_shared_expert(FieldReader& fields, ModelConfig& config, MoeConfig& moe) {
  moe.shared = {.width = fields.integer("shared_expert_intermediate_size", 1, kMaxIntermediate), .has_gate = true};
  config.names.shared_gate = "mlp.shared_expert.gate_proj";
  config.names.shared_up = "mlp.shared_expert.up_proj";
  config.names.shared_down = "mlp.shared_expert.down_proj";
}

/// Llama's block with biases on q, k and v. Layers from max_window_layers on slide, if any.
void describe_qwen2(FieldReader& fields, ModelConfig& config) {
  require_activation(fields, "silu");
  LayerConfig layer = read_block(fields, config);
  layer.attention.qkv_bias = true;
  layer.attention.rope = add_rope(fields, config, layer);
  set_qwen_layers(fields, config, layer, read_max_window_layers(fields));
}

/// Llama's block with a norm of each head of q and k. Layers from max_window_layers on slide, if any.
void describe_qwen3(FieldReader& fields, ModelConfig& config) {
  const LayerConfig layer = read_qwen3_block(fields, config, {.head_dim = 128});
  set_qwen_layers(fields, config, layer, read_max_window_layers(fields));
}

/// Qwen3's block with experts. All layers slide, if any.
void describe_qwen3_moe(FieldReader& fields, ModelConfig& config) {
  const LayerConfig layer = read_qwen3_block(fields, config, {});
  MoeConfig moe;
  read_qwen_experts(fields, moe);
  set_qwen_layers(fields, config, layer, 0);
  set_qwen_experts(fields, config, moe);
}

/// The text part of Qwen2-VL and Qwen2.5-VL, which is Qwen2's.
void describe_qwen2_vl(FieldReader& fields, ModelConfig& config) {
  describe_qwen2(fields, config);
  config.names.skipped_parts = kQwenVisionParts;
}

/// The text part of Qwen3-VL, which is Qwen3's: the three positions of a token of text are equal.
void describe_qwen3_vl(FieldReader& fields, ModelConfig& config) {
  describe_qwen3(fields, config);
  config.names.skipped_parts = kQwenVisionParts;
}

/// The text part of Qwen3-VL's mixtures. Their experts are stored together, with inputs down the rows.
void describe_qwen3_vl_moe(FieldReader& fields, ModelConfig& config) {
  describe_qwen3_moe(fields, config);
  config.names.expert_storage = ExpertStorage::kColumnHalves;
  config.names.skipped_parts = kQwenVisionParts;
}

/// Qwen2's block with experts, and a shared expert with a gate.
void describe_qwen2_moe(FieldReader& fields, ModelConfig& config) {
  require_activation(fields, "silu");
  LayerConfig layer = read_block(fields, config);
  layer.attention.qkv_bias = fields.flag_or("qkv_bias", true);
  layer.attention.rope = add_rope(fields, config, layer);
  // Implementations disagree on which layers slide.
  if (fields.flag_or("use_sliding_window", false))
    fields.fail("use_sliding_window true is not supported, wanted false");
  MoeConfig moe;
  read_qwen_experts(fields, moe);
  read_qwen_shared_expert(fields, config, moe);
  config.layers.assign(config.layers.size(), layer);
  set_qwen_experts(fields, config, moe);
}

}  // namespace millrace::model
