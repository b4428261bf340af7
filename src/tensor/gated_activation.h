#pragma once

#include <cstdint>

namespace millrace::tensor {

/// The function that joins a gate feature g and an up feature u of a gated feed-forward block.
enum class GatedFunction : uint8_t {
  kSilu,           ///< silu(g) · u
  kGeluTanh,       ///< g/2 · (1 + tanh(√(2/π)·(g + 0.044715·g³))) · u
  kClampedSwiglu,  ///< (u' + 1) · g' · sigmoid(alpha·g'), with g' = min(g, limit) and u' = u within ±limit
};

/// A gated function with its numbers. Included by kernels, hence without other headers.
struct GatedActivation {
  GatedFunction function = GatedFunction::kSilu;
  float alpha = 1.702f;  ///< of kClampedSwiglu
  float limit = 7.0f;    ///< of kClampedSwiglu, above 0
  friend bool operator==(const GatedActivation&, const GatedActivation&) = default;
};

}  // namespace millrace::tensor
