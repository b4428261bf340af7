#include <algorithm>

#include "model/families/block.h"
#include "model/families/families.h"

namespace millrace::model {
namespace {

/// Returns the width of the feed-forward block: two thirds of the one in config.json, rounded up.
int32_t adjusted_width(FieldReader& fields, int32_t width) {
  constexpr int32_t kMaxMultiple = 1 << 16;
  const double factor = fields.number_or("block_ffn_dim_multiplier", 1.0, 1e-3, 1e3);
  const int32_t multiple = fields.integer_or("block_multiple_of", 256, 1, kMaxMultiple);
  const auto scaled = static_cast<int64_t>(factor * (2 * int64_t{width} / 3));
  const int64_t rounded = (scaled + multiple - 1) / multiple * multiple;
  if (rounded < 1 || rounded > kMaxIntermediate)
    fields.fail_with("block_ffn_dim_multiplier {} makes a feed-forward block of width {}", factor, rounded);
  return static_cast<int32_t>(std::clamp<int64_t>(rounded, 1, kMaxIntermediate));
}

/// Llama's block with a norm of each head of q and k. Layers have attention or a gated short convolution.
void read_lfm2_layers(FieldReader& fields, ModelConfig& config, bool adjusts_width) {
  const int32_t given = fields.integer_or("block_ff_dim", 12288, 1, kMaxIntermediate);
  LayerConfig layer = read_block(fields, config,
                                 {.vocab_size = 65536,
                                  .kv_head_count = 8,
                                  .max_position = 128000,
                                  .intermediate_size = given,
                                  .epsilon_key = "norm_eps",
                                  .epsilon = 1e-5,
                                  .tied_embeddings = true});
  if (fields.has("block_ff_dim")) layer.feed_forward.width = given;
  if (adjusts_width && fields.flag_or("block_auto_adjust_ff_dim", true))
    layer.feed_forward.width = adjusted_width(fields, layer.feed_forward.width);
  config.tied_embeddings = fields.flag_or("tie_embedding", config.tied_embeddings);
  layer.attention.qk_norm = QkNorm::kPerHead;
  layer.attention.rope = add_rope(fields, config, layer, {.theta = 1e6});
  const ShortConvConfig conv{.width = config.hidden_size,
                             .conv_width = read_conv_width(fields, "conv_L_cache", 3),
                             .bias = fields.flag_or("conv_bias", false)};
  const std::vector<int32_t> attending = fields.integers("full_attn_idxs", 0, kMaxLayerCount);
  const bool names_layers = fields.has("full_attn_idxs");
  set_recurrent_layers(config, layer, conv, read_recurrent_layers(fields, config, {"conv"}, [&](int32_t index) {
                         return names_layers && std::ranges::find(attending, index) == attending.end();
                       }));
  config.names = {.final_norm = "model.embedding_norm.weight",
                  .attention_norm = "operator_norm",
                  .query_norm = "self_attn.q_layernorm",
                  .key_norm = "self_attn.k_layernorm",
                  .mixer_input = "conv.in_proj",
                  .mixer_conv = "conv.conv",
                  .mixer_output = "conv.out_proj",
                  .output = "self_attn.out_proj",
                  .feed_forward_norm = "ffn_norm",
                  .gate = "feed_forward.w1",
                  .up = "feed_forward.w3",
                  .down = "feed_forward.w2"};
}

}  // namespace

void describe_lfm2(FieldReader& fields, ModelConfig& config) {
  read_lfm2_layers(fields, config, true);
}

/// LFM2's block with experts after the first layers, chosen by sigmoid scores and a correction bias.
void describe_lfm2_moe(FieldReader& fields, ModelConfig& config) {
  read_lfm2_layers(fields, config, false);
  MoeConfig moe;
  moe.expert_count = fields.integer_or("num_experts", 32, 1, kMaxExpertCount);
  read_experts_per_token(fields, "num_experts", moe);
  moe.intermediate_size = fields.integer("moe_intermediate_size", 1, kMaxIntermediate);
  moe.score = tensor::RouterScore::kSigmoid;
  moe.choice_bias = fields.flag_or("use_expert_bias", true);
  moe.renormalize = fields.flag_or("norm_topk_prob", true);
  moe.sum_epsilon = 1e-6;
  moe.weight_scale = static_cast<float>(fields.number_or("routed_scaling_factor", 1.0, 0.0, 1e6));
  const int32_t dense = fields.integer_or("num_dense_layers", 2, 0, kMaxLayerCount);
  for (int32_t index = dense; index < config.layer_count(); ++index)
    config.layers[static_cast<size_t>(index)].feed_forward.moe = moe;
  config.names.router = "feed_forward.gate";
  config.names.choice_bias = "feed_forward.expert_bias";
  config.names.experts = "feed_forward.experts.";
  config.names.expert_gate = "w1";
  config.names.expert_up = "w3";
  config.names.expert_down = "w2";
}

}  // namespace millrace::model
