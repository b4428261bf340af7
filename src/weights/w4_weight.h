#pragma once

#include <cstdint>
#include <optional>

#include "tensor/sum_shards.h"
#include "tensor/w4.h"
#include "weights/stored_weight.h"

namespace millrace::weights {

/// What matrices that are packed together in 4 bits have in common.
struct W4Kind {
  tensor::W4Values values = tensor::W4Values::kInteger;
  bool has_minimums = false;
  bool has_half_scales = false;

  friend bool operator==(const W4Kind&, const W4Kind&) = default;
};

/// Returns the kind of a weight that tensor/w4.h describes without loss; nothing for others. Those are formats of more
/// than 4 bits, with groups of fewer than 32 columns other than NVFP4, or with groups of scattered columns.
[[nodiscard]] std::optional<W4Kind> w4_kind(const StoredWeight& weight);

/// Converts some rows of a weight of such a kind, on at most `threads` threads; 0: one per processor. The values are
/// those of decode_rows(), bit for bit, except that ggml's minimums are added in f32 either way, and that a scale is
/// multiplied by the reciprocal of its divisor.
[[nodiscard]] tensor::W4Storage to_w4(const StoredWeight& weight, tensor::TermRange rows, int32_t threads);

}  // namespace millrace::weights
