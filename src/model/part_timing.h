#pragma once

#include <functional>

#include "model/checkpoint.h"
#include "model/config.h"
#include "model/layer_balance.h"
#include "tensor/backend.h"

namespace millrace::model {

/// The load whose costs time_parts() measures and estimate_parts() estimates.
struct ReferenceLoad {
  int32_t prompt_tokens = 256;  ///< computed as one chunk; also the context of decode steps
  int32_t output_tokens = 128;
  int32_t decode_rows = 16;  ///< sequences per decode step
  /// Returns the decode steps per prompt, each shared by `decode_rows` requests.
  [[nodiscard]] double steps_per_prompt() const { return static_cast<double>(output_tokens) / decode_rows; }
};

/// Returns the seconds that each part of the model takes on `backend` for a prompt and for a decode step. It loads the
/// embedding, the head and the first few layers of each kind (sliding window, sparse or not). Prompts and decode steps
/// run through the parts in turn, so that no part finds its weights in the cache. The median counts, on a CPU of the
/// processor times where those are shorter, so that other load distorts little. Layers of a kind are assumed to cost
/// the same. The experts of some layers may be chosen more evenly than those of others: rows hold distinct tokens,
/// which the model's own router routes. Measuring takes about a second, or three rounds if those are longer. Never call
/// it inside Backend::submit. `between` is called between tensors and between runs; its exceptions end the measurement.
/// Errors: those of StageModel::load.
[[nodiscard]] Result<WorkCosts> time_parts(
    const Checkpoint& checkpoint, const ModelConfig& config, tensor::Backend& backend, const ReferenceLoad& load,
    const std::function<void()>& between = [] {});

}  // namespace millrace::model
