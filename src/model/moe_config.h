#pragma once

#include "model/config.h"
#include "model/field_reader.h"

namespace millrace::model {

/// Of Qwen3-MoE: its experts, and which of `layer_count` layers are sparse: those that mlp_only_layers does not name
/// and whose number, counted from 1, is a multiple of decoder_sparse_step.
void read_qwen3_moe(FieldReader& fields, ModelConfig& config);
/// Of Mixtral, whose layers are all sparse and whose experts have intermediate_size.
void read_mixtral(FieldReader& fields, ModelConfig& config);

}  // namespace millrace::model
