#pragma once

#include <functional>

#include "model/checkpoint.h"
#include "model/config.h"
#include "model/layer_balance.h"
#include "tensor/backend.h"

namespace millrace::model {

/// The load whose cost per request time_parts() measures.
struct ReferenceLoad {
  int32_t prompt_tokens = 256;  ///< computed as one chunk; also the context while decoding
  int32_t output_tokens = 128;
  int32_t decode_rows = 16;  ///< sequences that share a decode step
};

/// Seconds that each part of the model takes on `backend` per request of `load`. Loads the embedding, the head and, for
/// each kind of layer that the model has (a sliding window, sparse or not), the first few of it; runs prompts and
/// decode steps through them one part after another, so that no part finds its weights still in the cache, and takes
/// medians. Layers of a kind cost the same, though the experts of one may be chosen more evenly than those of another:
/// rows are of as many different tokens, whose experts are what the model's router makes of them. Takes about a second
/// beyond the loading, or three rounds if those are longer; never call it inside Backend::submit. Errors: those of
/// StageModel::load.
/// `between` is called between tensors and between runs of parts; what it throws ends the measuring.
[[nodiscard]] Result<PartCosts> time_parts(
    const Checkpoint& checkpoint, const ModelConfig& config, tensor::Backend& backend, const ReferenceLoad& load,
    const std::function<void()>& between = [] {});

}  // namespace millrace::model
