#include "model/families/block.h"
#include "model/families/families.h"

namespace millrace::model {
namespace {

/// Reads a number that some configs give as a list with one for each layer. All of them must be equal.
int32_t read_uniform(FieldReader& fields, std::string_view key, std::optional<int32_t> fallback, int32_t low,
                     int32_t high) {
  JsonArray array;
  const auto value = fields.find(key);
  if (!value || !value->get(array))
    return fallback ? fields.integer_or(key, *fallback, low, high) : fields.integer(key, low, high);
  const std::vector<double> numbers = fields.numbers(key, low, high);
  if (numbers.empty()) return fallback.value_or(low);
  for (const double number : numbers) {
    if (number != numbers.front())
      fields.fail_with("{} has {} and {}, wanted equal numbers for all layers", key, numbers.front(), number);
  }
  return static_cast<int32_t>(numbers.front());
}

/// Refuses what configs of Hunyuan name and no published model of these families has.
void refuse_other_parts(FieldReader& fields) {
  for (const char* key : {"use_cla", "use_mla", "position_embedding_xdrope", "group_limited_greedy"}) {
    if (fields.flag_or(key, false)) fields.fail_with("{} true is not supported, wanted false", key);
  }
  require_text(fields, "norm_type", "rms");
}

/// Reads Llama's block with a norm of each head of q and k after the rotation.
LayerConfig read_hunyuan_block(FieldReader& fields, ModelConfig& config) {
  require_activation(fields, "silu");
  refuse_other_parts(fields);
  const auto head_dim = fields.optional_integer("attention_head_dim", 2, kMaxHeadDim);
  LayerConfig layer = read_block(fields, config, {.head_dim = head_dim, .epsilon = 1e-5});
  layer.attention.qkv_bias = layer.attention.output_bias = fields.flag_or("attention_bias", false);
  if (fields.flag_or("use_qk_norm", true)) layer.attention.qk_norm = QkNorm::kRotatedPerHead;
  layer.attention.rope = add_rope(fields, config, layer, {.has_alpha = true});
  const RopeKind kind = config.ropes.back().kind;
  if (kind == RopeKind::kYarn || kind == RopeKind::kLongrope)
    fields.fail("rope_scaling with a factor of attention is not supported, wanted dynamic with alpha");
  config.names.query_norm = "self_attn.query_layernorm";
  config.names.key_norm = "self_attn.key_layernorm";
  return layer;
}

MoeConfig read_hunyuan_experts(FieldReader& fields, const LayerConfig& layer) {
  MoeConfig moe;
  moe.expert_count = read_uniform(fields, "num_experts", {}, 1, kMaxExpertCount);
  const char* topk = fields.has("moe_topk") ? "moe_topk" : "num_experts_per_tok";
  moe.experts_per_token = read_uniform(fields, topk, {}, 1, kMaxExpertCount);
  if (moe.experts_per_token > moe.expert_count)
    fields.fail_with("{} {} is above num_experts {}", topk, moe.experts_per_token, moe.expert_count);
  moe.intermediate_size =
      read_uniform(fields, "moe_intermediate_size", layer.feed_forward.width, 1, kMaxIntermediate / kMaxShared);
  if (!fields.flag_or("norm_topk_prob", true)) fields.fail("norm_topk_prob false is not supported, wanted true");
  if (fields.integer_or("moe_layer_num_skipped", 0, 0, kMaxLayerCount) != 0)
    fields.fail("moe_layer_num_skipped is not supported, wanted experts in all layers");
  moe.renormalize = true;
  moe.f32_router = true;
  const bool has_shared = fields.flag_or("use_mixed_mlp_moe", true);
  const int32_t shared = read_uniform(fields, "num_shared_expert", 1, 0, kMaxShared);
  if (has_shared && shared > 0) moe.shared = {.width = shared * moe.intermediate_size};
  return moe;
}

}  // namespace

/// Such a block in every layer.
void describe_hunyuan_v1_dense(FieldReader& fields, ModelConfig& config) {
  const LayerConfig layer = read_hunyuan_block(fields, config);
  config.layers.assign(config.layers.size(), layer);
}

/// All layers have experts, chosen by softmax, and a shared expert.
void describe_hunyuan_v1_moe(FieldReader& fields, ModelConfig& config) {
  const LayerConfig layer = read_hunyuan_block(fields, config);
  config.names.router = "mlp.gate.wg";
  config.names.shared_gate = "mlp.shared_mlp.gate_proj";
  config.names.shared_up = "mlp.shared_mlp.up_proj";
  config.names.shared_down = "mlp.shared_mlp.down_proj";
  set_dense_then_sparse(config, layer, read_hunyuan_experts(fields, layer), 0);
}

}  // namespace millrace::model
