#pragma once

#include "cuda/launch.h"
#include "tensor/gated_activation.h"

/// Activation functions of one feature.
namespace millrace::cuda {

/// Returns x · sigmoid(y).
__device__ inline float times_sigmoid(float x, float y) {
  return x / (expf(-y) + 1.0f);
}

/// Returns x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))), by (1 + tanh(z)) / 2 = sigmoid(2z).
__device__ inline float gelu_tanh(float x) {
  constexpr float kTwiceRootOfTwoOverPi = 1.5957691216057308f;
  return times_sigmoid(x, x * (x * x * 0.044715f + 1.0f) * kTwiceRootOfTwoOverPi);
}

/// Returns max(x, 0)², or NaN for a NaN.
__device__ inline float relu_squared_of(float x) {
  const float positive = x < 0.0f ? 0.0f : x;
  return positive * positive;
}

/// Returns the value of a gated activation for a gate and an up feature.
__device__ inline float activate(const tensor::GatedActivation& activation, float gate, float up) {
  switch (activation.function) {
    case tensor::GatedFunction::kSilu: break;
    case tensor::GatedFunction::kGeluTanh: return gelu_tanh(gate) * up;
    case tensor::GatedFunction::kClampedSwiglu: {
      // Comparisons keep NaNs, which fminf and fmaxf would drop.
      const float limit = activation.limit;
      const float g = gate > limit ? limit : gate;
      const float below = up > limit ? limit : up;
      const float u = below < -limit ? -limit : below;
      return times_sigmoid(g, g * activation.alpha) * (u + 1.0f);
    }
  }
  return times_sigmoid(gate, gate) * up;
}

}  // namespace millrace::cuda
