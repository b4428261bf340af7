#include <cmath>

#include "model/families/block.h"
#include "model/families/families.h"
#include "model/families/latent_block.h"
#include "model/families/mistral.h"

namespace millrace::model {

/// DeepSeek-V3's block, in which queries grow with their position as in Ministral 3. Experts are chosen by a softmax, a
/// group of them by the sum of its two best. Yarn changes frequencies alone and not the scale of scores.
void describe_mistral4(FieldReader& fields, ModelConfig& config) {
  LayerConfig layer = read_latent_block(fields, config, 1024);
  const LatentConfig& latent = *layer.attention.latent;
  layer.attention.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(latent.nope_dim + latent.rope_dim)));
  read_query_scaling(fields, layer.attention);
  MoeConfig moe = read_grouped_experts(fields);
  moe.score = tensor::RouterScore::kSoftmax;
  moe.sum_epsilon = 0.0;  // 1e-20 of it changes no sum of scores that add up to 1
  moe.choice_bias = false;
  moe.f32_router = false;
  if (moe.group_count == 1) moe.group_score = tensor::GroupScore::kMax;  // one group chooses nothing
  set_dense_then_sparse(config, layer, moe, read_dense_layers(fields, 0));
}

}  // namespace millrace::model
