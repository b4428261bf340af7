#pragma once

#include <cstdint>
#include <optional>

#include "tensor/sum_shards.h"
#include "tensor/code_matrix.h"
#include "weights/stored_weight.h"

namespace millrace::weights {

/// What is added to signed integers in codes of 8 bits.
inline constexpr int kCodeByteOffset = 128;

/// What matrices that are packed in one layout of tensor/code_matrix.h have in common.
struct CodeLayout {
  int bits = 4;          ///< of a code in memory
  int integer_bits = 8;  ///< as in tensor::CodeMatrix
  tensor::CodeValues values = tensor::CodeValues::kInteger;
  bool has_minimums = false;
  tensor::CodeHalfScales half_scales = tensor::CodeHalfScales::kNone;
  bool has_half_minimums = false;

  /// Compares all but integer_bits, since a layout for more bits also holds fewer.
  friend bool operator==(const CodeLayout& left, const CodeLayout& right) {
    return left.bits == right.bits && left.values == right.values && left.has_minimums == right.has_minimums &&
           left.half_scales == right.half_scales && left.has_half_minimums == right.has_half_minimums;
  }
};

/// Returns the kind of a weight that tensor/code_matrix.h describes without loss, but for one rounding in f32 where
/// NVFP4 has a factor; nothing for others. Others are floating point of more than 4 bits, groups of scattered columns,
/// and groups of fewer than 32 columns that are not those of NVFP4, Q2_K, Q3_K or Q6_K.
[[nodiscard]] std::optional<CodeLayout> code_layout(const StoredWeight& weight);

/// Returns whether such a weight in integers keeps zero points of its own in memory.
[[nodiscard]] bool has_zero_points(const StoredWeight& weight);

/// Returns the narrowest type that holds the scales of some rows of a weight of such a kind. It is the one in which
/// they are stored, or bf16 where all of them fit.
[[nodiscard]] tensor::DType narrowest_code_scales(const StoredWeight& weight, tensor::TermRange rows);

/// Converts some rows of a weight of such a kind, on at most `threads` threads; 0: one per processor. The values are
/// those of decode_rows(), bit for bit, with two exceptions: ggml's minimums are added in f32 either way, and a scale
/// is multiplied by the reciprocal of its divisor. Scales have the narrowest type, or `scale_dtype`, which holds them.
[[nodiscard]] tensor::CodeStorage to_codes(const StoredWeight& weight, tensor::TermRange rows, int32_t threads,
                                           std::optional<tensor::DType> scale_dtype = {});

}  // namespace millrace::weights
