#pragma once

#include <cstdint>

#include "model/config.h"
#include "model/field_reader.h"

namespace millrace::model {

/// Reads the dimensions of an encoder of BERT's kind into `config`, whose architecture is known. `pads_positions`:
/// positions are numbered from the padding token's id on, as RoBERTa's are. Other activations and other kinds of
/// positions are faults by name.
void read_encoder(FieldReader& fields, bool pads_positions, ModelConfig& config);

}  // namespace millrace::model
