#include "model/moe_config.h"

#include <algorithm>

namespace millrace::model {
namespace {

constexpr int32_t kMaxExpertCount = 1024;
constexpr int32_t kMaxExpertIntermediate = 1 << 20;
constexpr int32_t kMaxSparseStep = 1024;

void read_experts_per_token(FieldReader& fields, const char* count_key, MoeConfig& moe) {
  moe.experts_per_token = fields.integer("num_experts_per_tok", 1, kMaxExpertCount);
  if (moe.experts_per_token > moe.expert_count)
    fields.fail_with("num_experts_per_tok {} is above {} {}", moe.experts_per_token, count_key, moe.expert_count);
}

}  // namespace

void read_qwen3_moe(FieldReader& fields, ModelConfig& config) {
  MoeConfig& moe = config.moe;
  // transformers 5 writes the second name.
  const bool renamed = !fields.has("num_experts") && fields.has("num_local_experts");
  const char* count_key = renamed ? "num_local_experts" : "num_experts";
  moe.expert_count = fields.integer(count_key, 1, kMaxExpertCount);
  const int32_t other = fields.integer_or("num_local_experts", moe.expert_count, 1, kMaxExpertCount);
  if (other != moe.expert_count)
    fields.fail_with("num_experts {} and num_local_experts {} differ", moe.expert_count, other);
  read_experts_per_token(fields, count_key, moe);
  moe.intermediate_size = fields.integer("moe_intermediate_size", 1, kMaxExpertIntermediate);
  moe.renormalize = fields.flag_or("norm_topk_prob", false);
  const int32_t step = fields.integer_or("decoder_sparse_step", 1, 1, kMaxSparseStep);
  const std::vector<int32_t> dense = fields.integers("mlp_only_layers", 0, kMaxSparseStep);
  for (int32_t layer = 0; layer < config.layer_count; ++layer)
    config.sparse_layers.push_back((layer + 1) % step == 0 && std::ranges::find(dense, layer) == dense.end());
}

void read_mixtral(FieldReader& fields, ModelConfig& config) {
  MoeConfig& moe = config.moe;
  moe.expert_count = fields.integer("num_local_experts", 1, kMaxExpertCount);
  read_experts_per_token(fields, "num_local_experts", moe);
  moe.intermediate_size = config.intermediate_size;
  moe.renormalize = true;
  moe.names = ExpertNaming::kBlockSparseMoe;
  config.sparse_layers.assign(static_cast<size_t>(config.layer_count), true);
}

}  // namespace millrace::model
