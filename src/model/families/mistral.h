#pragma once

#include "model/config.h"
#include "model/field_reader.h"

/// What the newer models of Mistral have in common.
namespace millrace::model {

/// Reads how queries grow beyond the original context: llama_4_scaling_beta of rope_parameters, or beta of the object
/// llama_4_scaling. Without either, or with 0, they do not.
void read_query_scaling(FieldReader& fields, AttentionConfig& attention);

}  // namespace millrace::model
