#pragma once

#include <cstdint>
#include <span>

#include "base/enum_names.h"

namespace millrace::tensor {

/// The ops, and the members of ops, that only some backends have.
enum class Feature : uint8_t {
  kEncoders,            ///< add_embedding, gelu, and attention that is not causal
  kLayerNorm,           ///< layer_norm
  kConversion,          ///< convert
  kScaledSums,          ///< add_scaled_sums
  kScaling,             ///< scale
  kSoftCap,             ///< soft_cap
  kGeluTanh,            ///< gelu_tanh_mul and gelu_tanh_gate
  kReluSquared,         ///< relu_squared, and experts without a gate
  kScaledGates,         ///< scaled_silu_mul (of biased blocks too), gated norms without a weight or with a gate_factor
  kAttentionSoftCap,    ///< AttentionShape::soft_cap
  kAttentionSinks,      ///< AttentionShape::sinks
  kQueryScaling,        ///< RotaryTable::query_beta
  kAttentionChunks,     ///< AttentionShape::chunk_size
  kValueNorms,          ///< AttentionShape::value_norm and values_are_keys
  kNormOfAllHeads,      ///< norms of q and k over all heads in rotary_store_kv
  kHeadNorms,           ///< AttentionShape::head_norm other than kRms
  kAttentionGates,      ///< gate
  kRecurrence,          ///< caches of states, and the ops of recurrent mixers
  kStatesBeforeDrafts,  ///< BatchLayout::drafts in the ops of recurrent mixers
  kLatentAttention,     ///< caches of latents, pack_latent_expansion, store_latent, latent_attention
  kIndexers,            ///< KvCacheShape::index_dim, store_index_key, choose_tokens, sparse_latent_attention
  kRouting,             ///< routing that is not Routing::is_plain_softmax
  kExpertActivation,    ///< experts with a gated activation other than GatedFunction::kSilu
  kWeighedInputs,       ///< Routing::weighs_inputs
  kExpertNorms,         ///< rms_norm_in_place and Routing::expert_scales
  kExpertBiases,        ///< ExpertPacker::add_biases
  kF32Weights,          ///< pack_f32
  kGatedSums,           ///< add_gated_sums
};

/// The features by the names that messages have for them.
inline constexpr EnumName<Feature> kFeatureNames[] = {
    {Feature::kEncoders, "encoders"},
    {Feature::kLayerNorm, "LayerNorm"},
    {Feature::kConversion, "attention without a norm before it"},
    {Feature::kScaledSums, "norms after a block or scaled residuals"},
    {Feature::kScaling, "scaled embeddings or logits"},
    {Feature::kSoftCap, "a soft cap of logits"},
    {Feature::kGeluTanh, "GELU with tanh"},
    {Feature::kReluSquared, "feed-forward blocks with squared ReLU"},
    {Feature::kScaledGates, "scaled gates"},
    {Feature::kAttentionSoftCap, "a soft cap of attention scores"},
    {Feature::kAttentionSinks, "attention sinks"},
    {Feature::kQueryScaling, "queries scaled by position"},
    {Feature::kAttentionChunks, "chunked attention"},
    {Feature::kValueNorms, "a norm of values"},
    {Feature::kNormOfAllHeads, "a norm over all heads"},
    {Feature::kHeadNorms, "heads with LayerNorm or with a norm after the rotation"},
    {Feature::kAttentionGates, "attention with an output gate"},
    {Feature::kRecurrence, "recurrent layers"},
    {Feature::kStatesBeforeDrafts, "states before drafts"},
    {Feature::kLatentAttention, "latent attention"},
    {Feature::kIndexers, "an indexer of the tokens that attention sees"},
    {Feature::kRouting, "routers with sigmoid scores, a correction bias, groups or a scale"},
    {Feature::kExpertActivation, "experts with another activation than silu"},
    {Feature::kWeighedInputs, "experts with weighed inputs"},
    {Feature::kExpertNorms, "experts with norms and scales of their own"},
    {Feature::kExpertBiases, "experts with biases"},
    {Feature::kF32Weights, "routers in f32"},
    {Feature::kGatedSums, "shared experts with a gate"},
};
constexpr std::span<const EnumName<Feature>> enum_names(Feature) {
  return kFeatureNames;
}

}  // namespace millrace::tensor
