#include "model/families/block.h"
#include "model/families/families.h"
#include "model/families/qwen.h"

namespace millrace::model {
namespace {

DeltaNetConfig read_delta_net(FieldReader& fields) {
  constexpr int32_t kMaxDim = 1024;
  DeltaNetConfig net;
  net.key_head_count = fields.integer_or("linear_num_key_heads", 16, 1, kMaxHeadCount);
  net.value_head_count = fields.integer_or("linear_num_value_heads", 32, 1, kMaxHeadCount);
  net.key_dim = fields.integer_or("linear_key_head_dim", 128, 1, kMaxDim);
  net.value_dim = fields.integer_or("linear_value_head_dim", 128, 1, kMaxDim);
  net.conv_width = read_conv_width(fields, "linear_conv_kernel_dim", 4);
  if (net.value_head_count % net.key_head_count != 0)
    fields.fail_with("linear_num_value_heads {} is not a multiple of linear_num_key_heads {}", net.value_head_count,
                     net.key_head_count);
  return net;
}

/// Refuses models whose gates are others than Qwen3.5's: a sigmoid after attention, SiLU after the norm of a delta net.
void refuse_other_gates(FieldReader& fields) {
  if (!fields.flag_or("attn_output_gate", true)) fields.fail("attn_output_gate false is not supported, wanted true");
  const std::string gate = fields.text_or("output_gate_type", "swish");
  if (gate != "swish" && gate != "silu")
    fields.fail_with("output_gate_type '{}' is not supported, wanted 'swish'", gate);
}

/// Qwen3's block with norms that multiply by 1 + w. Every fourth layer has attention, whose output has a gate and whose
/// heads are rotated in part; the others have a gated delta net.
void read_hybrid_layers(FieldReader& fields, ModelConfig& config, std::optional<int32_t> intermediate_size) {
  constexpr int32_t kMaxInterval = 1024;
  require_activation(fields, "silu");
  refuse_other_gates(fields);
  LayerConfig layer = read_block(fields, config, {.head_dim = 256, .intermediate_size = intermediate_size});
  if (fields.flag_or("attention_bias", false)) fields.fail("attention_bias true is not supported, wanted false");
  config.norm = NormKind::kRmsPlusOne;
  layer.attention.qk_norm = QkNorm::kPerHead;
  layer.attention.output_gate = true;
  layer.attention.rope = add_rope(fields, config, layer, {.partial = 0.25});
  const int32_t interval = fields.integer_or("full_attention_interval", 4, 1, kMaxInterval);
  set_recurrent_layers(config, layer, read_delta_net(fields),
                       read_recurrent_layers(fields, config, {"linear_attention"},
                                             [interval](int32_t index) { return (index + 1) % interval != 0; }));
  config.names.skipped_parts = "mtp. model.visual. visual.";
}

MoeConfig read_hybrid_experts(FieldReader& fields, ModelConfig& config) {
  MoeConfig moe;
  read_qwen_experts(fields, moe, true);
  read_qwen_shared_expert(fields, config, moe);
  return moe;
}

}  // namespace

/// The hybrid block with experts and a shared expert with a gate. Projections of the delta net are stored per key head.
void describe_qwen3_next(FieldReader& fields, ModelConfig& config) {
  read_hybrid_layers(fields, config, {});
  config.names.fused_delta_qkvz = "linear_attn.in_proj_qkvz";
  config.names.fused_delta_ba = "linear_attn.in_proj_ba";
  set_qwen_experts(fields, config, read_hybrid_experts(fields, config));
}

/// The hybrid block, dense.
void describe_qwen3_5(FieldReader& fields, ModelConfig& config) {
  read_hybrid_layers(fields, config, {});
}

/// The hybrid block with experts in every layer.
void describe_qwen3_5_moe(FieldReader& fields, ModelConfig& config) {
  read_hybrid_layers(fields, config, fields.integer("moe_intermediate_size", 1, kMaxIntermediate));
  const MoeConfig moe = read_hybrid_experts(fields, config);
  for (LayerConfig& layer : config.layers) layer.feed_forward.moe = moe;
}

}  // namespace millrace::model
