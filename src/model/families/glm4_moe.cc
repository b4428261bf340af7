#include "model/families/block.h"
#include "model/families/families.h"

namespace millrace::model {

/// Llama's block with biases on q, k and v, a rotation of half of each head, and a norm per head in some models. The
/// first layers are dense. The others have experts by DeepSeek-V3's router, and a shared expert.
void describe_glm4_moe(FieldReader& fields, ModelConfig& config) {
  require_activation(fields, "silu");
  LayerConfig layer = read_block(fields, config, {.epsilon = 1e-5});
  layer.attention.qkv_bias = fields.flag_or("attention_bias", false);
  if (fields.flag_or("use_qk_norm", false)) layer.attention.qk_norm = QkNorm::kPerHead;
  layer.attention.rope = add_rope(fields, config, layer, {.partial = 0.5});
  set_dense_then_sparse(config, layer, read_grouped_experts(fields),
                        fields.integer_or("first_k_dense_replace", 1, 0, kMaxLayerCount));
}

/// The text part of GLM-4.5V and GLM-4.6V.
void describe_glm4v_moe(FieldReader& fields, ModelConfig& config) {
  describe_glm4_moe(fields, config);
  config.names.skipped_parts = "model.visual. visual.";
}

}  // namespace millrace::model
