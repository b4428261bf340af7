#pragma once

#include "model/config.h"
#include "tensor/backend.h"
#include "tensor/kv_dtype.h"

namespace millrace::model {

/// Returns whether the forward pass of a model uses a feature that some backends lack.
[[nodiscard]] bool needs(const ModelConfig& config, tensor::Feature feature);

/// Refuses, by the name of its flag, a KV cache of 8 bits for latents on a device that stores them in the compute
/// dtype.
[[nodiscard]] Result<void> check_kv_dtype(const ModelConfig& config, tensor::KvDType wanted,
                                          const tensor::Backend& backend);

}  // namespace millrace::model
