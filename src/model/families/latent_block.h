#pragma once

#include <cstdint>

#include "model/families/block.h"

/// What the families with multi-head latent attention have in common.
namespace millrace::model {

/// Reads the block of DeepSeek-V2: Llama's with multi-head latent attention. `query_rank` is the default of
/// q_lora_rank; null in config.json means a whole projection.
LayerConfig read_latent_block(FieldReader& fields, ModelConfig& config, int32_t query_rank);
/// Reads that block without a rotation of queries and keys. `defaults` need no head_dim.
LayerConfig read_unrotated_latent_block(FieldReader& fields, ModelConfig& config, const BlockDefaults& defaults);

/// Reads how many layers come before those with experts, `silent` of them where config.json does not say. Layers with
/// experts at other distances than one after the other are refused.
int32_t read_dense_layers(FieldReader& fields, int32_t silent);

}  // namespace millrace::model
