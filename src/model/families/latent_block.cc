#include "model/families/latent_block.h"

#include <cmath>

#include "model/families/block.h"

namespace millrace::model {
namespace {

constexpr int32_t kMaxRank = 1 << 15;
constexpr int32_t kMaxLatentDim = 512;  ///< with kMaxRopeDim the limit of the attention kernels
constexpr int32_t kMaxRopeDim = 128;

/// Returns the factor of the scores of a model whose context yarn stretches: the square of yarn's factor of cos and
/// sin, with mscale_all_dim.
double yarn_score_factor(const RopeConfig& rope) {
  const double all_dim = rope.mscale_all_dim.value_or(0.0);
  if (rope.kind != RopeKind::kYarn || all_dim == 0.0 || rope.factor <= 1.0) return 1.0;
  const double factor = 0.1 * all_dim * std::log(rope.factor) + 1.0;
  return factor * factor;
}

/// Reads the rotation of the last channels of queries and of the key that all heads share, and adds it to `config`.
int32_t add_latent_rope(FieldReader& fields, ModelConfig& config, int32_t rope_dim) {
  RopeConfig rope = parse_rope(fields, {.max_position = config.max_position, .head_dim = rope_dim});
  rope.rotary_dim = rope_dim;
  rope.interleaved = fields.flag_or("rope_interleave", true);
  config.ropes.push_back(std::move(rope));
  return static_cast<int32_t>(config.ropes.size()) - 1;
}

/// Reads the block without its rotation. `query_rank` is the default of q_lora_rank; 0: a whole projection.
LayerConfig read_latents(FieldReader& fields, ModelConfig& config, int32_t query_rank, BlockDefaults defaults) {
  require_activation(fields, "silu");
  const int32_t value_dim = fields.integer("v_head_dim", 2, kMaxHeadDim);
  defaults.head_dim = value_dim;
  LayerConfig layer = read_block(fields, config, defaults);
  AttentionConfig& attention = layer.attention;
  LatentConfig latent;
  latent.query_rank = fields.integer_or("q_lora_rank", fields.has_key("q_lora_rank") ? 0 : query_rank, 1, kMaxRank);
  latent.latent_dim = fields.integer("kv_lora_rank", 1, kMaxLatentDim);
  latent.nope_dim = fields.integer("qk_nope_head_dim", 1, kMaxHeadDim);
  latent.rope_dim = fields.integer("qk_rope_head_dim", 2, kMaxRopeDim);
  if (latent.rope_dim % 2 != 0) fields.fail_with("qk_rope_head_dim {} is not even", latent.rope_dim);
  latent.bias = attention.output_bias = fields.flag_or("attention_bias", false);
  attention.latent = latent;
  attention.head_dim = value_dim;
  attention.kv_head_count = 1;
  attention.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(latent.nope_dim + latent.rope_dim)));
  return layer;
}

}  // namespace

LayerConfig read_latent_block(FieldReader& fields, ModelConfig& config, int32_t query_rank) {
  LayerConfig layer = read_latents(fields, config, query_rank, {});
  AttentionConfig& attention = layer.attention;
  const LatentConfig& latent = *attention.latent;
  attention.rope = add_latent_rope(fields, config, latent.rope_dim);
  attention.scale = static_cast<float>(yarn_score_factor(config.ropes.back()) /
                                       std::sqrt(static_cast<double>(latent.nope_dim + latent.rope_dim)));
  return layer;
}

LayerConfig read_unrotated_latent_block(FieldReader& fields, ModelConfig& config, const BlockDefaults& defaults) {
  return read_latents(fields, config, 0, defaults);
}

int32_t read_dense_layers(FieldReader& fields, int32_t silent) {
  const int32_t frequency = fields.integer_or("moe_layer_freq", 1, 1, kMaxLayerCount);
  if (frequency != 1) fields.fail_with("moe_layer_freq {} is not supported, wanted 1", frequency);
  return fields.integer_or("first_k_dense_replace", silent, 0, kMaxLayerCount);
}

}  // namespace millrace::model
