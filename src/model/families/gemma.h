#pragma once

#include "model/config.h"
#include "model/families/block.h"
#include "model/field_reader.h"

/// What the generations of Gemma have in common.
namespace millrace::model {

/// Reads x = √hidden · embed(t) and the block x += rms(Attention(rms(x))); x += rms(F(rms(x))), F(x) =
/// Wdown·(gelu(Wgate·x) · Wup·x). All norms multiply by 1 + w.
LayerConfig read_gemma_block(FieldReader& fields, ModelConfig& config, BlockDefaults defaults);

/// Returns a cap that is absent where config.json says null. `silent` is the cap of a config that does not name it.
float read_gemma_cap(FieldReader& fields, const char* key, double silent);

}  // namespace millrace::model
