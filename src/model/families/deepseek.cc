#include <algorithm>

#include "model/families/block.h"
#include "model/families/families.h"
#include "model/families/latent_block.h"

namespace millrace::model {
namespace {

constexpr int32_t kMaxIndexHeads = 256;
constexpr int32_t kMaxIndexDim = 512;

/// Reads DeepSeek-V2's experts: scores are a softmax, which weighs the experts undivided, and the best of a group
/// stands for it.
MoeConfig read_softmax_experts(FieldReader& fields) {
  require_text(fields, "scoring_func", "softmax");
  const std::string method = fields.text_or("topk_method", "greedy");
  if (method != "greedy" && method != "group_limited_greedy")
    fields.fail_with("topk_method '{}' is not one of greedy, group_limited_greedy", method);
  MoeConfig moe = read_grouped_experts(fields);
  moe.score = tensor::RouterScore::kSoftmax;
  moe.renormalize = false;
  moe.sum_epsilon = 0.0;
  moe.choice_bias = false;
  moe.group_score = tensor::GroupScore::kMax;
  if (method == "greedy") moe.group_count = moe.groups_per_token = 1;
  return moe;
}

/// Reads DeepSeek-V3's experts, which read_grouped_experts describes.
MoeConfig read_sigmoid_experts(FieldReader& fields) {
  require_text(fields, "scoring_func", "sigmoid");
  require_text(fields, "topk_method", "noaux_tc");
  return read_grouped_experts(fields);
}

/// Reads DeepSeek-V3's block in other sizes. The first layers are dense unless mlp_layer_types names others.
void read_by_layer_types(FieldReader& fields, ModelConfig& config, int32_t query_rank, int32_t dense_count) {
  const LayerConfig layer = read_latent_block(fields, config, query_rank);
  config.layers.assign(config.layers.size(), layer);
  set_experts_by_layer_types(fields, config, read_sigmoid_experts(fields), read_dense_layers(fields, dense_count));
}

/// Returns for each layer whether it takes the choice of the layer before it: by indexer_types (full, shared), by
/// index_topk_pattern ("FSSF"), or every layer but each index_topk_freq-th from index_skip_topk_offset - 1 on. Without
/// these no layer does.
std::vector<bool> read_shared_choices(FieldReader& fields, const ModelConfig& config) {
  const auto count = static_cast<size_t>(config.layer_count());
  std::vector<bool> shared(count, false);
  std::vector<std::string> types;
  std::string_view key = "indexer_types";
  if (fields.has(key)) {
    types = fields.strings(key);
  } else if (fields.has("index_topk_pattern")) {
    key = "index_topk_pattern";
    for (const char type : fields.text(key)) types.emplace_back(type == 'F' ? "full" : type == 'S' ? "shared" : "?");
  } else {
    const int32_t frequency = fields.integer_or("index_topk_freq", 1, 1, kMaxLayerCount);
    const int32_t offset = fields.integer_or("index_skip_topk_offset", 2, 1, kMaxLayerCount);  // layer 0 chooses
    for (size_t layer = 0; layer < count; ++layer)
      shared[layer] = std::max(static_cast<int32_t>(layer) - offset + 1, 0) % frequency != 0;
    return shared;
  }
  if (types.size() != count) fields.fail_with("{} names {} layers, num_hidden_layers {}", key, types.size(), count);
  for (size_t layer = 0; layer < std::min(count, types.size()); ++layer) {
    shared[layer] = types[layer] == "shared";
    if (types[layer] != "full" && types[layer] != "shared")
      fields.fail_with("{} names '{}' for layer {}, wanted full or shared", key, types[layer], layer);
  }
  if (shared.front()) fields.fail_with("{}: layer 0 has no indexer, wanted one", key);
  return shared;
}

/// Gives every layer its indexer. A model whose context is no longer than what indexers choose needs none.
void add_indexers(FieldReader& fields, ModelConfig& config, int32_t head_count, bool interleaved) {
  IndexerConfig indexer;
  indexer.head_count = fields.integer_or("index_n_heads", head_count, 1, kMaxIndexHeads);
  indexer.head_dim = fields.integer_or("index_head_dim", 128, 2, kMaxIndexDim);
  indexer.chosen_count = fields.integer_or("index_topk", 2048, 1, kMaxPosition);
  indexer.interleaved = fields.flag_or("indexer_rope_interleave", interleaved);
  const std::vector<bool> shared = read_shared_choices(fields, config);
  for (size_t layer = 0; layer < config.layers.size(); ++layer) {
    LatentConfig& latent = *config.layers[layer].attention.latent;
    if (latent.query_rank == 0) return fields.fail_with("q_lora_rank is null, which an indexer does not support");
    if (indexer.head_dim < latent.rope_dim)
      return fields.fail_with("index_head_dim {} is below qk_rope_head_dim {}", indexer.head_dim, latent.rope_dim);
    latent.indexer = indexer;
    latent.indexer->is_shared = shared[layer];
  }
  config.names.ignored_layer_part = ".self_attn.indexer.";
  if (config.context_length() <= indexer.chosen_count) drop_indexers(config);
}

}  // namespace

/// The latent block, in which layers from first_k_dense_replace on have experts and a shared one.
void describe_deepseek_v2(FieldReader& fields, ModelConfig& config) {
  const LayerConfig layer = read_latent_block(fields, config, 1536);
  set_dense_then_sparse(config, layer, read_softmax_experts(fields), read_dense_layers(fields, 0));
}

/// DeepSeek-V2's block with sigmoid scores and a correction of the choice.
void describe_deepseek_v3(FieldReader& fields, ModelConfig& config) {
  read_by_layer_types(fields, config, 1536, 3);
}

/// The block in the sizes of GLM-4.7-Flash.
void describe_glm4_moe_lite(FieldReader& fields, ModelConfig& config) {
  read_by_layer_types(fields, config, 768, 1);
}

/// DeepSeek-V3's block with an indexer.
void describe_deepseek_v32(FieldReader& fields, ModelConfig& config) {
  describe_deepseek_v3(fields, config);
  add_indexers(fields, config, 64, false);
}

/// The block with an indexer in the sizes of GLM-5.
void describe_glm_moe_dsa(FieldReader& fields, ModelConfig& config) {
  read_by_layer_types(fields, config, 2048, 3);
  add_indexers(fields, config, 32, true);
}

/// The text part of Kimi K2.5, which is DeepSeek-V3's.
void describe_kimi_k25(FieldReader& fields, ModelConfig& config) {
  describe_deepseek_v3(fields, config);
  config.names.skipped_parts = "vision_tower. mm_projector. multi_modal_projector.";
}

}  // namespace millrace::model
