#pragma once

#include "model/config.h"
#include "model/field_reader.h"

namespace millrace::model {

/// Reads the experts of Qwen3-MoE and its sparse layers. A layer is sparse when its number, counted from 1, is a
/// multiple of decoder_sparse_step and mlp_only_layers does not name it. Faults are recorded in `fields`.
void read_qwen3_moe(FieldReader& fields, ModelConfig& config);
/// Reads the experts of Mixtral: all layers are sparse, and experts have intermediate_size. Faults are recorded in
/// `fields`.
void read_mixtral(FieldReader& fields, ModelConfig& config);

}  // namespace millrace::model
