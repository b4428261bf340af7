#pragma once

#include "model/config.h"
#include "tensor/backend.h"

namespace millrace::model {

/// Returns whether the forward pass of a model uses a feature that some backends lack.
[[nodiscard]] bool needs(const ModelConfig& config, tensor::Feature feature);

}  // namespace millrace::model
