#include "model/families/block.h"
#include "model/families/families.h"

namespace millrace::model {
namespace {

MoeConfig read_bailing_experts(FieldReader& fields) {
  require_text(fields, "score_function", "sigmoid");
  MoeConfig moe = read_grouped_experts(fields, {.count = "num_experts", .shared = "num_shared_experts"});
  moe.choice_bias = fields.flag_or("moe_router_enable_expert_bias", true);
  return moe;
}

}  // namespace

/// Llama's block with a norm of each head of q and k, a rotation of a part of each head, and DeepSeek-V3's experts
/// after the first layers.
void describe_bailing_moe_v2(FieldReader& fields, ModelConfig& config) {
  require_activation(fields, "silu");
  LayerConfig layer = read_block(fields, config);
  for (const char* key : {"use_bias", "norm_head", "norm_softmax"}) {
    if (fields.flag_or(key, false)) fields.fail_with("{} true is not supported, wanted false", key);
  }
  layer.attention.qkv_bias = fields.flag_or("use_qkv_bias", false);
  if (fields.flag_or("use_qk_norm", true)) layer.attention.qk_norm = QkNorm::kPerHead;
  layer.attention.rope = add_rope(fields, config, layer, {.theta = 6e5, .partial = 1.0});
  config.layers.assign(config.layers.size(), layer);
  set_experts_by_layer_types(fields, config, read_bailing_experts(fields),
                             fields.integer_or("first_k_dense_replace", 0, 0, kMaxLayerCount));
  config.names = {.embedding = "model.word_embeddings.weight",
                  .query = "attention.q",
                  .key = "attention.k",
                  .value = "attention.v",
                  .fused_qkv = "attention.query_key_value",
                  .query_norm = "attention.query_layernorm",
                  .key_norm = "attention.key_layernorm",
                  .output = "attention.dense",
                  .choice_bias = "mlp.gate.expert_bias"};
}

}  // namespace millrace::model
