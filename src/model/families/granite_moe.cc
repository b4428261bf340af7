#include "model/families/block.h"
#include "model/families/families.h"

namespace millrace::model {

/// Llama's block with experts on every layer and four scalars: x = m_e · embed(t); x += m_r · Attention(norm(x)), whose
/// scores are scaled by attention_multiplier; x += m_r · Experts(norm(x)); logits / logits_scaling. The weights of a
/// token's experts are a softmax over their logits alone.
void describe_granite_moe(FieldReader& fields, ModelConfig& config) {
  constexpr double kMax = 1e6;
  constexpr double kMin = 1e-6;
  require_activation(fields, "silu");
  LayerConfig layer = read_block(fields, config);
  layer.attention.qkv_bias = layer.attention.output_bias = fields.flag_or("attention_bias", false);
  layer.attention.scale = static_cast<float>(fields.number_or("attention_multiplier", 1.0, kMin, kMax));
  layer.attention.rope = add_rope(fields, config, layer);
  layer.residual_multiplier = static_cast<float>(fields.number_or("residual_multiplier", 1.0, kMin, kMax));
  config.embedding_scale = static_cast<float>(fields.number_or("embedding_multiplier", 1.0, kMin, kMax));
  config.logit_scale = static_cast<float>(1.0 / fields.number_or("logits_scaling", 1.0, kMin, kMax));
  MoeConfig moe;
  moe.expert_count = fields.integer("num_local_experts", 1, kMaxExpertCount);
  read_experts_per_token(fields, "num_local_experts", moe);
  moe.intermediate_size = layer.feed_forward.width;
  moe.renormalize = true;
  layer.feed_forward.moe = moe;
  config.names = {.router = "block_sparse_moe.router.layer",
                  .experts = "block_sparse_moe.experts.",
                  .expert_storage = ExpertStorage::kRows,
                  .fused_experts_gate_up = "block_sparse_moe.input_linear.weight",
                  .fused_experts_down = "block_sparse_moe.output_linear.weight"};
  config.layers.assign(config.layers.size(), layer);
}

}  // namespace millrace::model
