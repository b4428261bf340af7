#include "model/families/block.h"
#include "model/families/families.h"

namespace millrace::model {
namespace {

/// Returns the number of dense layers, which come first.
int32_t read_dense_layers(FieldReader& fields, const ModelConfig& config) {
  const int32_t count = fields.integer_or("first_k_dense_replace", 1, 0, kMaxLayerCount);
  if (!fields.has("mlp_layer_types")) return count;
  const std::vector<std::string> types = fields.strings("mlp_layer_types");
  int32_t dense = 0;
  while (dense < static_cast<int32_t>(types.size()) && types[static_cast<size_t>(dense)] == "dense") ++dense;
  for (size_t index = static_cast<size_t>(dense); index < types.size(); ++index) {
    if (types[index] != "sparse")
      fields.fail_with("mlp_layer_types names '{}' for layer {}, wanted dense layers and then sparse ones",
                       types[index], index);
  }
  if (static_cast<int32_t>(types.size()) != config.layer_count())
    fields.fail_with("mlp_layer_types names {} layers, num_hidden_layers {}", types.size(), config.layer_count());
  return dense;
}

MoeConfig read_hy_experts(FieldReader& fields) {
  MoeConfig moe;
  moe.expert_count = fields.integer("num_experts", 1, kMaxExpertCount);
  read_experts_per_token(fields, "num_experts", moe);
  const char* width_key = fields.has("moe_intermediate_size") ? "moe_intermediate_size" : "expert_hidden_dim";
  moe.intermediate_size = fields.integer(width_key, 1, kMaxIntermediate / kMaxShared);
  if (!fields.flag_or("moe_router_use_sigmoid", true))
    fields.fail("moe_router_use_sigmoid false is not supported, wanted true");
  moe.score = tensor::RouterScore::kSigmoid;
  moe.choice_bias = fields.flag_or("moe_router_enable_expert_bias", true);
  moe.renormalize = fields.flag_or("route_norm", true);
  moe.sum_epsilon = 1e-20;
  moe.weight_scale = static_cast<float>(fields.number_or("router_scaling_factor", 2.826, 0.0, 1e6));
  moe.f32_router = true;
  read_shared_experts(fields, "num_shared_experts", 1, moe);
  return moe;
}

}  // namespace

/// Llama's block with a norm of each head of q and k. The first layers are dense. The others have experts, chosen by
/// sigmoid scores and a correction bias, and a shared expert.
void describe_hy_v3(FieldReader& fields, ModelConfig& config) {
  require_activation(fields, "silu");
  LayerConfig layer = read_block(fields, config, {.head_dim = 128, .epsilon = 1e-5});
  layer.attention.qkv_bias = layer.attention.output_bias = fields.flag_or("attention_bias", false);
  if (fields.flag_or("qk_norm", true)) layer.attention.qk_norm = QkNorm::kPerHead;
  layer.attention.rope = add_rope(fields, config, layer, {.theta = 11158840.0});
  config.names = {.router = "mlp.router.gate",
                  .choice_bias = "mlp.expert_bias",
                  .shared_gate = "mlp.shared_mlp.gate_proj",
                  .shared_up = "mlp.shared_mlp.up_proj",
                  .shared_down = "mlp.shared_mlp.down_proj"};
  set_dense_then_sparse(config, layer, read_hy_experts(fields), read_dense_layers(fields, config));
}

}  // namespace millrace::model
