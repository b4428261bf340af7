#pragma once

#include <cstdint>

/// The dimensions of recurrent mixers.
namespace millrace::tensor {

class DeviceVector;

/// A causal convolution of each channel over the last `width` tokens: Σ_i weight[i] · x[t - width + 1 + i] + bias. Its
/// state is the last width - 1 inputs, oldest first, at the beginning of a sequence's state.
struct ConvShape {
  int64_t channels = 0;
  int32_t width = 0;
  [[nodiscard]] int64_t state_values() const { return channels * (width - 1); }
};

/// The dimensions of a gated delta net on a rank. Its state follows the convolution's: [value_heads][key_dim]
/// [value_dim].
struct DeltaNetShape {
  int32_t key_head_count = 0;  ///< divides value_head_count
  int32_t value_head_count = 0;
  int32_t key_dim = 0;
  int32_t value_dim = 0;
  int64_t state_begin = 0;     ///< values of a sequence's state before this one
  bool channel_decay = false;  ///< each row of a state decays by itself; there are as many key heads as value heads
  [[nodiscard]] int64_t key_width() const { return int64_t{key_head_count} * key_dim; }
  [[nodiscard]] int64_t value_width() const { return int64_t{value_head_count} * value_dim; }
};

/// The dimensions of Mamba-2's state space on a rank. Its state follows the convolution's: [heads][state_dim]
/// [head_dim].
struct StateSpaceShape {
  int32_t head_count = 0;
  int32_t head_dim = 0;
  int32_t group_count = 0;  ///< divides head_count
  int32_t state_dim = 0;
  float min_step = 0.0f;
  float max_step = 0.0f;
  int64_t state_begin = 0;
  [[nodiscard]] int64_t inner_width() const { return int64_t{head_count} * head_dim; }
  [[nodiscard]] int64_t group_width() const { return int64_t{group_count} * state_dim; }
};

/// An RMS norm of groups of channels with a gate, which multiplies by silu(gate_factor · gate), or by a sigmoid. A norm
/// without a weight, and a gate_factor other than 1, require Feature::kScaledGates.
struct GatedNorm {
  const DeviceVector* weight = nullptr;  ///< [group] for all groups, or one for each channel; null: no norm
  float epsilon = 0.0f;
  int64_t group = 0;        ///< channels that are normalised together
  bool gate_first = false;  ///< the gate multiplies what is normalised, not what the norm gives
  float gate_factor = 1.0f;
  bool sigmoid = false;  ///< the gate multiplies by sigmoid(gate); only with a weight, after the norm, factor 1
};

}  // namespace millrace::tensor
