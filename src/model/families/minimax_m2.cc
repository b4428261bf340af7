#include "model/families/block.h"
#include "model/families/families.h"

namespace millrace::model {
namespace {

MoeConfig read_minimax_experts(FieldReader& fields, const LayerConfig& layer) {
  MoeConfig moe;
  moe.expert_count = fields.integer("num_local_experts", 1, kMaxExpertCount);
  read_experts_per_token(fields, "num_local_experts", moe);
  moe.intermediate_size = layer.feed_forward.width;
  const std::string scores = fields.text_or("scoring_func", "sigmoid");
  if (scores != "sigmoid") fields.fail_with("scoring_func '{}' is not supported, wanted 'sigmoid'", scores);
  moe.score = tensor::RouterScore::kSigmoid;
  moe.choice_bias = fields.flag_or("use_routing_bias", true);
  moe.renormalize = true;
  const int32_t shared = fields.integer_or("shared_intermediate_size", 0, 0, kMaxIntermediate);
  if (shared != 0) fields.fail_with("shared_intermediate_size {} is not supported, wanted 0", shared);
  return moe;
}

}  // namespace

/// Llama's block with a norm of q and k over all heads, a rotation of the first rotary_dim channels, and experts on
/// every layer, chosen by sigmoid scores and a correction bias.
void describe_minimax_m2(FieldReader& fields, ModelConfig& config) {
  require_activation(fields, "silu");
  LayerConfig layer = read_block(fields, config, {.head_dim = 128});
  const std::string norm = fields.text_or("qk_norm_type", "per_layer");
  if (norm != "per_layer") fields.fail_with("qk_norm_type '{}' is not supported, wanted 'per_layer'", norm);
  if (fields.flag_or("use_qk_norm", true)) layer.attention.qk_norm = QkNorm::kAllHeads;
  for (const int32_t type : fields.integers("attn_type_list", 0, 1)) {
    if (type != 1) fields.fail("attn_type_list names linear attention, wanted 1 for every layer");
  }
  const int32_t head_dim = layer.attention.head_dim;
  const int32_t rotated = fields.integer_or("rotary_dim", head_dim, 2, head_dim);
  layer.attention.rope =
      add_rope(fields, config, layer, {.theta = 5e6, .partial = static_cast<double>(rotated) / head_dim});
  layer.feed_forward.moe = read_minimax_experts(fields, layer);
  config.names = {.router = "block_sparse_moe.gate",
                  .choice_bias = "block_sparse_moe.e_score_correction_bias",
                  .experts = "block_sparse_moe.experts.",
                  .expert_gate = "w1",
                  .expert_up = "w3",
                  .expert_down = "w2"};
  config.layers.assign(config.layers.size(), layer);
}

}  // namespace millrace::model
