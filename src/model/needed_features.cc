#include "model/needed_features.h"

#include <algorithm>

namespace millrace::model {
namespace {

using tensor::Feature;

bool experts_need(const MoeConfig& moe, Feature feature) {
  switch (feature) {
    case Feature::kRouting: return moe.choice_bias || !moe.routing().is_plain_softmax();
    case Feature::kExpertActivation: return moe.activation != tensor::GatedActivation{};
    case Feature::kWeighedInputs: return moe.weighs_inputs;
    case Feature::kExpertNorms: return moe.own_norms || moe.expert_scales;
    case Feature::kExpertBiases: return moe.biases;
    case Feature::kF32Weights: return moe.f32_router;
    case Feature::kGatedSums: return moe.shared && moe.shared->has_gate;
    default: return false;
  }
}

bool layer_needs(const LayerConfig& layer, Feature feature) {
  const AttentionConfig& attention = layer.attention;
  switch (feature) {
    case Feature::kConversion:
      return !layer.norms.before_attention || (!layer.norms.before_feed_forward && !layer.parallel);
    case Feature::kScaledSums:
      return layer.norms.after_attention || layer.norms.after_feed_forward || layer.residual_multiplier != 1.0f;
    case Feature::kGeluTanh: return layer.feed_forward.activation == MlpActivation::kGeluTanh;
    case Feature::kAttentionSoftCap: return attention.soft_cap != 0.0f;
    case Feature::kAttentionSinks: return attention.sinks;
    case Feature::kQueryScaling: return attention.query_scaling.has_value();
    case Feature::kAttentionChunks: return attention.chunked;
    case Feature::kValueNorms: return attention.value_norm || attention.values_are_keys;
    case Feature::kAttentionGates: return attention.output_gate;
    case Feature::kRecurrence: return layer.recurrent.has_value();
    case Feature::kLatentAttention: return attention.latent.has_value();
    case Feature::kNormOfAllHeads: return attention.qk_norm == QkNorm::kAllHeads;
    default: return layer.feed_forward.moe && experts_need(*layer.feed_forward.moe, feature);
  }
}

}  // namespace

bool needs(const ModelConfig& config, Feature feature) {
  switch (feature) {
    case Feature::kEncoders: return config.encoder.has_value();
    case Feature::kLayerNorm: return config.norm == NormKind::kLayer || config.norm == NormKind::kLayerInPlace;
    case Feature::kScaling:
      return config.embedding_scale != 1.0f || (config.has_output_head && config.logit_scale != 1.0f) ||
             std::ranges::any_of(config.layers, &LayerConfig::output_scale);
    case Feature::kSoftCap: return config.has_output_head && config.logit_soft_cap != 0.0f;
    default:
      return std::ranges::any_of(config.layers, [&](const LayerConfig& layer) { return layer_needs(layer, feature); });
  }
}

}  // namespace millrace::model
