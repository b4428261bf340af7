#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/tensor_list.h"

namespace millrace::model {

/// The weights of a recurrent mixer by their use. Lists are packed one above the other.
struct RecurrentTensors {
  std::vector<TensorSpec> input;       ///< the projection's rows: what is convolved, then what gates the output
  std::vector<TensorSpec> input_bias;  ///< of Mamba-2, with a bias
  std::vector<TensorSpec> steps;       ///< rows that control the state and stay unquantized: b and a, or dt
  std::vector<TensorSpec> steps_bias;
  std::vector<TensorSpec> conv;       ///< [channels, width] in all
  std::vector<TensorSpec> conv_bias;  ///< [channels] in all
  std::optional<TensorSpec> decay;    ///< logarithms, [heads]
  std::optional<TensorSpec> step_bias;
  std::optional<TensorSpec> skip;
  std::optional<TensorSpec> norm;
  TensorSpec output;
  std::optional<TensorSpec> output_bias;

  /// Appends all of them, in the order of loading.
  void add_to(std::vector<TensorSpec>& specs) const;
};

/// Returns the weights of a recurrent layer.
[[nodiscard]] RecurrentTensors recurrent_tensors(const ModelConfig& config, int32_t layer);

/// Returns the names of such weights.
[[nodiscard]] std::vector<std::string> names_of(const std::vector<TensorSpec>& specs);

}  // namespace millrace::model
