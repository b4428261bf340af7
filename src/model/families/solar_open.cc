#include "model/families/block.h"
#include "model/families/families.h"

namespace millrace::model {

/// Llama's block with DeepSeek-V3's experts in every layer.
void describe_solar_open(FieldReader& fields, ModelConfig& config) {
  require_activation(fields, "silu");
  const int32_t width = fields.integer("moe_intermediate_size", 1, kMaxIntermediate);
  LayerConfig layer = read_block(fields, config, {.head_dim = 128, .intermediate_size = width, .epsilon = 1e-5});
  layer.attention.qkv_bias = fields.flag_or("attention_bias", false);
  if (fields.flag_or("use_qk_norm", false)) fields.fail("use_qk_norm true is not supported, wanted false");
  layer.attention.rope = add_rope(fields, config, layer, {.theta = 1e6, .partial = 1.0});
  const int32_t dense = fields.integer_or("first_k_dense_replace", 0, 0, kMaxLayerCount);
  if (dense != 0) fields.fail_with("first_k_dense_replace {} is not supported, wanted 0", dense);
  set_dense_then_sparse(config, layer, read_grouped_experts(fields), 0);
}

}  // namespace millrace::model
