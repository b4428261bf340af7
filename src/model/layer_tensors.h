#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/tensor_list.h"

namespace millrace::model {

/// Appends the weights of a layer, in the order of loading, as its description asks for them.
void add_layer_tensors(const ModelConfig& config, int32_t layer, std::vector<TensorSpec>& specs);
/// Appends the norm before a layer; for the count of layers the final one.
void add_norm_before_layer(const ModelConfig& config, int32_t layer, std::vector<TensorSpec>& specs);

}  // namespace millrace::model
