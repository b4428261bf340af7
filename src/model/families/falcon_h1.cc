#include <algorithm>

#include "model/families/block.h"
#include "model/families/families.h"
#include "model/families/mamba.h"

namespace millrace::model {
namespace {

/// Reads a list of `count` multipliers, which are 1 where it is absent.
std::vector<float> read_multipliers(FieldReader& fields, const char* key, size_t count) {
  const std::vector<double> read = fields.numbers(key, 1e-9, 1e9);
  if (!read.empty() && read.size() != count) fields.fail_with("{} has {} numbers, wanted {}", key, read.size(), count);
  std::vector<float> factors(count, 1.0f);
  for (size_t i = 0; i < std::min(count, read.size()); ++i) factors[i] = static_cast<float>(read[i]);
  return factors;
}

MambaConfig read_falcon_mamba(FieldReader& fields, const ModelConfig& config) {
  constexpr int32_t kMaxExpand = 64;
  MambaConfig mamba;
  mamba.head_count = fields.integer_or("mamba_n_heads", 128, 1, kMaxHeadCount);
  // Where mamba_d_ssm is not null, mamba_expand says nothing, and may be a fraction.
  const bool is_expanded = fields.has_key("mamba_d_ssm") && !fields.has("mamba_d_ssm");
  const int32_t width = is_expanded ? fields.integer_or("mamba_expand", 2, 1, kMaxExpand) * config.hidden_size
                                    : fields.integer_or("mamba_d_ssm", 1024, 1, kMaxWidth);
  if (width % mamba.head_count != 0)
    fields.fail_with("mamba_d_ssm {} is not a multiple of mamba_n_heads {}", width, mamba.head_count);
  mamba.head_dim = std::max(1, width / mamba.head_count);
  mamba.group_count = fields.integer_or("mamba_n_groups", 1, 1, kMaxHeadCount);
  mamba.state_dim = fields.integer_or("mamba_d_state", 256, 1, kMaxMambaState);
  mamba.conv_width = read_conv_width(fields, "mamba_d_conv", 4);
  mamba.conv_bias = fields.flag_or("mamba_conv_bias", true);
  mamba.input_bias = fields.flag_or("mamba_proj_bias", false);
  mamba.output_bias = fields.flag_or("projectors_bias", false);
  const bool before_gate = fields.flag_or("mamba_norm_before_gate", true);
  mamba.norm = before_gate ? MambaNorm::kBeforeGate : MambaNorm::kAfterGate;
  if (!fields.flag_or("mamba_rms_norm", false)) mamba.norm = MambaNorm::kNone;
  const float input = read_multiplier(fields, "ssm_in_multiplier");
  const std::vector<float> parts = read_multipliers(fields, "ssm_multipliers", 5);
  mamba.factors = {.gate = input * parts[0],
                   .x = input * parts[1],
                   .b = input * parts[2],
                   .c = input * parts[3],
                   .step = input * parts[4]};
  if (mamba.input_bias) mamba.input_bias_factor = 1.0f / input;  // the multiplier is the input's
  mamba.output_factor = read_multiplier(fields, "ssm_out_multiplier");
  finish_mamba(fields, "mamba_n_heads", "mamba_n_groups", mamba);
  return mamba;
}

}  // namespace

/// Llama's block with attention and Mamba-2 in every layer, whose outputs are added. Many numbers multiply inputs and
/// outputs (arXiv 2507.22448). A factor of attention's input or keys changes scores and values as one of its scale and
/// output.
void describe_falcon_h1(FieldReader& fields, ModelConfig& config) {
  require_activation(fields, "silu");
  LayerConfig layer = read_block(fields, config,
                                 {.vocab_size = 128000,
                                  .head_count = 32,
                                  .kv_head_count = 8,
                                  .max_position = 8192,
                                  .intermediate_size = 14336,
                                  .epsilon = 1e-5,
                                  .allows_mlp_bias = true});
  layer.attention.qkv_bias = layer.attention.output_bias = fields.flag_or("attention_bias", false);
  if (fields.has("attn_layer_indices"))
    fields.fail("attn_layer_indices is not supported, wanted attention in all layers");
  if (!fields.flag_or("mamba_use_mlp", true)) fields.fail("mamba_use_mlp false is not supported, wanted true");
  layer.attention.rope = add_rope(fields, config, layer);
  const float input = read_multiplier(fields, "attention_in_multiplier");
  layer.attention.scale *= input * input * read_multiplier(fields, "key_multiplier");
  // The folded factors do not reach the biases.
  if (layer.attention.qkv_bias) layer.attention.bias_factor = 1.0f / input;
  layer.attention.output_factor = input * read_multiplier(fields, "attention_out_multiplier");
  const std::vector<float> mlp = read_multipliers(fields, "mlp_multipliers", 2);
  layer.feed_forward.gate_factor = mlp[0];
  layer.feed_forward.output_factor = mlp[1];
  layer.recurrent = read_falcon_mamba(fields, config);
  config.embedding_scale = read_multiplier(fields, "embedding_multiplier");
  config.logit_scale = read_multiplier(fields, "lm_head_multiplier");
  config.layers.assign(config.layers.size(), layer);
  config.names = {.final_norm = "model.final_layernorm.weight",
                  .feed_forward_norm = "pre_ff_layernorm",
                  .gate = "feed_forward.gate_proj",
                  .up = "feed_forward.up_proj",
                  .down = "feed_forward.down_proj"};
  set_mamba_names(config.names);
}

}  // namespace millrace::model
