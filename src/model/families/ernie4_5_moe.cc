#include "model/families/block.h"
#include "model/families/families.h"

namespace millrace::model {
namespace {

MoeConfig read_ernie_experts(FieldReader& fields) {
  MoeConfig moe;
  moe.expert_count = fields.integer("moe_num_experts", 1, kMaxExpertCount);
  read_experts_per_token(fields, "moe_num_experts", moe, "moe_k");
  moe.intermediate_size = fields.integer("moe_intermediate_size", 1, kMaxIntermediate / kMaxShared);
  moe.renormalize = true;
  moe.min_sum = fields.number_or("moe_norm_min", 1e-12, 0.0, 1.0);
  moe.f32_router = true;
  moe.choice_bias = fields.flag_or("moe_use_aux_free", true);
  read_shared_experts(fields, "moe_num_shared_experts", 2, moe);
  return moe;
}

}  // namespace

/// Llama's block, whose rotation pairs neighbouring channels. Layers from moe_layer_start_index to moe_layer_end_index
/// whose number, counted from 1, is a multiple of moe_layer_interval have experts and a shared expert.
void describe_ernie4_5_moe(FieldReader& fields, ModelConfig& config) {
  require_activation(fields, "silu");
  LayerConfig layer = read_block(fields, config, {.epsilon = 1e-5, .tied_embeddings = true});
  if (fields.flag_or("use_bias", false)) fields.fail("use_bias true is not supported, wanted false");
  layer.attention.rope = add_rope(fields, config, layer, {.theta = 5e5});
  config.ropes.back().interleaved = true;
  const MoeConfig moe = read_ernie_experts(fields);
  config.names = {.choice_bias = "mlp.moe_statics.e_score_correction_bias", .choice_bias_is_row = true};
  const int32_t count = config.layer_count();
  const int32_t start = fields.integer_or("moe_layer_start_index", 1, 0, kMaxLayerCount);
  const int32_t end = fields.integer_or("moe_layer_end_index", -1, -1, kMaxLayerCount);
  const int32_t interval = fields.integer_or("moe_layer_interval", 1, 1, kMaxLayerCount);
  for (int32_t index = 0; index < count; ++index) {
    LayerConfig& own = config.layers[static_cast<size_t>(index)];
    own = layer;
    if (index >= start && (end < 0 || index <= end) && (index + 1) % interval == 0) own.feed_forward.moe = moe;
  }
}

}  // namespace millrace::model
