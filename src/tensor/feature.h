#pragma once

#include <cstdint>
#include <span>

#include "base/enum_names.h"

namespace millrace::tensor {

/// A part of some models' layers that not every backend computes. A model that needs a missing one is refused by this
/// name before it is loaded.
enum class Feature : uint8_t {
  kEncoders,          ///< add_embedding, layer_norm, gelu, and attention that is not causal
  kRouting,           ///< routing that is not Routing::is_plain_softmax
  kGatedActivations,  ///< gated activations other than GatedFunction::kSilu
  kExpertBiases,      ///< ExpertPacker::add_biases
  kF32Weights,        ///< Backend::pack_f32
  kGatedSums,         ///< add_gated_sums
};

inline constexpr EnumName<Feature> kFeatureNames[] = {
    {Feature::kEncoders, "encoders"},
    {Feature::kRouting, "routers with sigmoid scores, a correction bias, groups or a scale"},
    {Feature::kGatedActivations, "gated activations other than silu"},
    {Feature::kExpertBiases, "experts with biases"},
    {Feature::kF32Weights, "routers in f32"},
    {Feature::kGatedSums, "shared experts with a gate"},
};
constexpr std::span<const EnumName<Feature>> enum_names(Feature) {
  return kFeatureNames;
}

}  // namespace millrace::tensor
