#pragma once

#include "model/config.h"
#include "model/field_reader.h"

/// What the mixtures of the Qwen families have in common.
namespace millrace::model {

/// Reads the experts; `renormalize` is the default of norm_topk_prob.
void read_qwen_experts(FieldReader& fields, MoeConfig& moe, bool renormalize = false);
/// Gives experts to each layer whose number, counted from 1, is a multiple of decoder_sparse_step, and that
/// mlp_only_layers does not name.
void set_qwen_experts(FieldReader& fields, ModelConfig& config, const MoeConfig& moe);
/// Reads the shared expert, which has a gate, and names its tensors.
void read_qwen_shared_expert(FieldReader& fields, ModelConfig& config, MoeConfig& moe);

}  // namespace millrace::model
