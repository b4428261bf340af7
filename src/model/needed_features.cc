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

bool attention_needs(const AttentionConfig& attention, Feature feature) {
  switch (feature) {
    case Feature::kScaledSums: return attention.output_factor != 1.0f;
    case Feature::kAttentionSoftCap: return attention.soft_cap != 0.0f;
    case Feature::kAttentionSinks: return attention.sinks;
    case Feature::kQueryScaling: return attention.query_scaling.has_value();
    case Feature::kAttentionChunks: return attention.chunked;
    case Feature::kValueNorms: return attention.value_norm || attention.values_are_keys;
    case Feature::kAttentionGates: return attention.output_gate;
    case Feature::kLatentAttention: return attention.latent.has_value();
    case Feature::kIndexers: return attention.latent && attention.latent->indexer;
    case Feature::kHeadNorms: return head_norm(attention.qk_norm) != tensor::HeadNorm::kRms;
    case Feature::kNormOfAllHeads: return attention.qk_norm == QkNorm::kAllHeads;
    default: return false;
  }
}

bool mixer_needs(const RecurrentConfig& mixer, Feature feature) {
  const auto* mamba = std::get_if<MambaConfig>(&mixer);
  const auto* net = std::get_if<DeltaNetConfig>(&mixer);
  switch (feature) {
    case Feature::kRecurrence: return true;
    case Feature::kConversion: return net != nullptr && net->channel_decay;
    case Feature::kScaledSums: return output_factor(mixer) != 1.0f;
    case Feature::kScaling: return mamba != nullptr && mamba->factors.step != 1.0f;
    case Feature::kScaledGates:
      return mamba != nullptr && (mamba->norm == MambaNorm::kNone || mamba->factors.gate != 1.0f);
    default: return false;
  }
}

bool feed_forward_needs(const FeedForwardConfig& feed_forward, Feature feature) {
  switch (feature) {
    case Feature::kScaledSums: return feed_forward.output_factor != 1.0f;
    case Feature::kGeluTanh: return feed_forward.activation == MlpActivation::kGeluTanh;
    case Feature::kReluSquared: return feed_forward.activation == MlpActivation::kReluSquared;
    case Feature::kScaledGates:
      return feed_forward.activation == MlpActivation::kSilu && feed_forward.gated && !feed_forward.fuses_activation();
    default: return feed_forward.moe && experts_need(*feed_forward.moe, feature);
  }
}

bool layer_needs(const LayerConfig& layer, Feature feature) {
  const LayerNorms& norms = layer.norms;
  const bool has_input = layer.input_width > 0;
  if (has_input &&
      (feature == Feature::kGeluTanh || feature == Feature::kExpertNorms || feature == Feature::kConversion))
    return true;
  const auto& moe = layer.feed_forward.moe;
  if (feature == Feature::kConversion && moe && moe->latent_size > 0) return true;
  if (feature == Feature::kConversion && layer.recurrent && mixer_needs(*layer.recurrent, feature)) return true;
  if (feature == Feature::kConversion)
    return (layer.mixes() && !norms.before_attention) ||
           (layer.has_feed_forward() && !norms.before_feed_forward && !layer.parallel);
  if (feature == Feature::kScaledSums &&
      (has_input || norms.after_attention || norms.after_feed_forward || layer.residual_multiplier != 1.0f))
    return true;
  return (layer.attends && attention_needs(layer.attention, feature)) ||
         (layer.recurrent && mixer_needs(*layer.recurrent, feature)) ||
         (layer.has_feed_forward() && feed_forward_needs(layer.feed_forward, feature));
}

}  // namespace

bool needs(const ModelConfig& config, Feature feature) {
  const bool is_of_layer =
      std::ranges::any_of(config.layers, [&](const LayerConfig& layer) { return layer_needs(layer, feature); });
  switch (feature) {
    case Feature::kEncoders: return config.encoder.has_value();
    case Feature::kLayerNorm: return config.norm == NormKind::kLayer || config.norm == NormKind::kLayerInPlace;
    case Feature::kScaling:
      return is_of_layer || config.embedding_scale != 1.0f || (config.has_output_head && config.logit_scale != 1.0f) ||
             config.layer_inputs || std::ranges::any_of(config.layers, &LayerConfig::output_scale);
    case Feature::kSoftCap: return config.has_output_head && config.logit_soft_cap != 0.0f;
    default: return is_of_layer;
  }
}

}  // namespace millrace::model
