#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/layer_range.h"
#include "model/tensor_list.h"

/// The names of an encoder's tensors. A norm that ends a block in the checkpoint is the one that begins the next.
namespace millrace::model {

inline constexpr std::string_view kEncoderWords = "embeddings.word_embeddings.weight";
inline constexpr std::string_view kEncoderPositions = "embeddings.position_embeddings.weight";
inline constexpr std::string_view kEncoderTypes = "embeddings.token_type_embeddings.weight";

/// Returns "encoder.layer.7.attention.self.query.weight" for (7, "attention.self.query.weight").
[[nodiscard]] std::string encoder_tensor_name(int32_t layer, std::string_view part);
/// Returns the name, without ".weight" and ".bias", of the norm before a layer. That of layer `layer_count` is the
/// final one.
[[nodiscard]] std::string encoder_norm_name(int32_t layer);
/// Returns every tensor of the span once, in the order of loading.
[[nodiscard]] std::vector<TensorSpec> encoder_tensors(const ModelConfig& config, StageSpan span);
/// Returns whether a tensor is a part of the layers or embeddings of an encoder, and none that derives from
/// config.json.
[[nodiscard]] bool is_encoder_part(std::string_view name);

}  // namespace millrace::model
