#include <algorithm>

#include "model/families/block.h"
#include "model/families/families.h"
#include "model/families/latent_block.h"

namespace millrace::model {
namespace {

/// Returns the first of two spellings that config.json has: those of the published files and of transformers.
std::string_view spelling(const FieldReader& fields, std::string_view published, std::string_view saved) {
  return fields.has(published) ? published : saved;
}

MoeConfig read_kimi_linear_experts(FieldReader& fields) {
  require_text(fields, "moe_router_activation_func", "sigmoid");
  const std::string_view local = spelling(fields, "num_local_experts", "n_routed_experts");
  const MoeConfig moe =
      read_grouped_experts(fields, {.count = spelling(fields, "num_experts", local),
                                    .shared = spelling(fields, "num_shared_experts", "n_shared_experts"),
                                    .per_token = spelling(fields, "num_experts_per_token", "num_experts_per_tok"),
                                    .renormalize = spelling(fields, "moe_renormalize", "norm_topk_prob"),
                                    .groups = spelling(fields, "num_expert_group", "n_group")});
  if (!fields.flag_or("use_grouped_topk", true) && moe.group_count > 1)
    fields.fail_with("use_grouped_topk false with {} groups is not supported, wanted true", moe.group_count);
  return moe;
}

DeltaNetConfig make_kimi_delta(int32_t heads, int32_t dim, int32_t conv_width) {
  return {.key_head_count = heads,
          .value_head_count = heads,
          .key_dim = dim,
          .value_dim = dim,
          .conv_width = conv_width,
          .channel_decay = true,
          .gate_rank = dim};
}

/// The recurrent layers, and what they have.
struct KimiDeltaLayers {
  DeltaNetConfig net;
  std::vector<bool> recurrent;
};

/// Marks the layers of two lists, which count from 1 and name each layer once.
std::vector<bool> read_listed_layers(FieldReader& fields, int32_t layer_count) {
  std::vector<int32_t> listed(static_cast<size_t>(layer_count), 0);
  std::vector<bool> recurrent(listed.size(), false);
  for (const char* key : {"kda_layers", "full_attn_layers"}) {
    for (const int32_t layer : fields.integers(key, 1, layer_count)) {
      const auto index = static_cast<size_t>(std::clamp(layer, 1, layer_count) - 1);
      ++listed[index];
      if (key == std::string_view("kda_layers")) recurrent[index] = true;
    }
  }
  const auto fault = std::ranges::find_if(listed, [](int32_t times) { return times != 1; });
  if (fault != listed.end())
    fields.fail_with("kda_layers and full_attn_layers name layer {} {} times, wanted once", fault - listed.begin() + 1,
                     *fault);
  return recurrent;
}

/// Reads them from linear_attn_config, as published, or from the members that transformers writes.
KimiDeltaLayers read_kimi_delta_layers(FieldReader& fields, const ModelConfig& config) {
  constexpr int32_t kMaxDim = 256;
  const int32_t layer_count = config.layer_count();
  const auto read_net = [&](FieldReader& from, const char* heads, const char* dim, const char* conv) {
    return make_kimi_delta(from.integer_or(heads, 32, 1, kMaxHeadCount), from.integer_or(dim, 128, 1, kMaxDim),
                           read_conv_width(from, conv, 4));
  };
  const auto by_types = [&] {
    return read_recurrent_layers(fields, config, {"linear_attention"},
                                 [](int32_t layer) { return layer == 0 || layer % 4 != 0; });
  };
  const auto object = fields.object("linear_attn_config");
  if (!object)
    return {.net = read_net(fields, "linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim"),
            .recurrent = by_types()};
  FieldReader linear(fields.source() + ": linear_attn_config", *object);
  KimiDeltaLayers layers{.net = read_net(linear, "num_heads", "head_dim", "short_conv_kernel_size"), .recurrent = {}};
  const bool is_listed = linear.has("kda_layers") && linear.has("full_attn_layers") && !fields.has("layer_types");
  layers.recurrent = is_listed ? read_listed_layers(linear, layer_count) : by_types();
  fields.take_error_of(linear);
  return layers;
}

}  // namespace

/// DeepSeek-V3's block without rotation, in which most layers have Kimi Delta Attention in place of latent attention.
void describe_kimi_linear(FieldReader& fields, ModelConfig& config) {
  if (!fields.flag_or("mla_use_nope", true)) fields.fail("mla_use_nope false is not supported, wanted true");
  LayerConfig layer = read_unrotated_latent_block(
      fields, config,
      {.max_position_key = spelling(fields, "model_max_length", "max_position_embeddings"), .epsilon = 1e-5});
  const KimiDeltaLayers layers = read_kimi_delta_layers(fields, config);
  if (layer.attention.latent->bias) fields.fail("attention_bias true is not supported, wanted false");
  set_recurrent_layers(config, layer, layers.net, layers.recurrent);
  set_experts_by_layer_types(fields, config, read_kimi_linear_experts(fields), read_dense_layers(fields, 1));
  config.names = {.delta_b = "self_attn.b_proj",
                  .mixer_decay = "self_attn.A_log",
                  .mixer_step_bias = "self_attn.dt_bias",
                  .mixer_norm = "self_attn.o_norm",
                  .mixer_output = "self_attn.o_proj",
                  .router = "block_sparse_moe.gate",
                  .choice_bias = "block_sparse_moe.gate.e_score_correction_bias",
                  .experts = "block_sparse_moe.experts.",
                  .expert_gate = "w1",
                  .expert_up = "w3",
                  .expert_down = "w2",
                  .shared_gate = "block_sparse_moe.shared_experts.gate_proj",
                  .shared_up = "block_sparse_moe.shared_experts.up_proj",
                  .shared_down = "block_sparse_moe.shared_experts.down_proj"};
}

}  // namespace millrace::model
