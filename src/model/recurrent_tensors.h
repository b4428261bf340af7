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
  std::vector<TensorSpec> input;       ///< rows of what is convolved, then of what gates the output without gate_a
  std::vector<TensorSpec> input_bias;  ///< of Mamba-2, with a bias
  std::vector<TensorSpec> steps;       ///< rows that control the state and stay unquantized: b and a, b, or dt
  std::vector<TensorSpec> steps_bias;
  std::vector<TensorSpec> conv;       ///< [channels, width] in all
  std::vector<TensorSpec> conv_bias;  ///< [channels] in all
  // Factors of low rank with channel_decay, unquantized: of the steps of decays and of the output's gates.
  std::optional<TensorSpec> decay_a;
  std::optional<TensorSpec> decay_b;
  std::optional<TensorSpec> gate_a;
  std::optional<TensorSpec> gate_b;
  std::optional<TensorSpec> decay;  ///< logarithms, [heads]
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
