#pragma once

#include "tensor/matrix.h"

namespace millrace::tensor {

/// What a delta net takes, all f32: b gives strengths, and a the steps of the decays.
struct DeltaNetInputs {
  Matrix mixed;               ///< [T, q | k | v]
  Matrix gates;               ///< [T, b | a], [value_heads] each; with channel_decay b alone
  Matrix channel_steps = {};  ///< with channel_decay a: [T, value_heads · key_dim]
};

}  // namespace millrace::tensor
