#pragma once

#include <cstdint>
#include <optional>

#include "tensor/sum_shards.h"
#include "tensor/w4.h"
#include "weights/stored_weight.h"

namespace millrace::weights {

/// What matrices that are packed in one layout of tensor/w4.h have in common.
struct W4Kind {
  int bits = 4;  ///< of a code in memory
  tensor::W4Values values = tensor::W4Values::kInteger;
  bool has_minimums = false;
  tensor::W4HalfScales half_scales = tensor::W4HalfScales::kNone;

  friend bool operator==(const W4Kind&, const W4Kind&) = default;
};

/// Returns the kind of a weight that tensor/w4.h describes without loss, but for one
/// rounding in f32 where NVFP4 has a factor; nothing for others. Those are floating point
/// of more than 4 bits, groups of fewer than 32 columns other than those of NVFP4 and Q6_K, and groups of scattered
/// columns.
[[nodiscard]] std::optional<W4Kind> w4_kind(const StoredWeight& weight);

/// Converts some rows of a weight of such a kind, on at most `threads` threads; 0: one per processor. The values are
/// those of decode_rows(), bit for bit, except that ggml's minimums are added in f32 either way, and that a scale is
/// multiplied by the reciprocal of its divisor.
[[nodiscard]] tensor::W4Storage to_w4(const StoredWeight& weight, tensor::TermRange rows, int32_t threads);

}  // namespace millrace::weights
