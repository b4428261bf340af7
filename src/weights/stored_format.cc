#include "weights/stored_format.h"

#include "tensor/code_matrix.h"
#include "weights/fp8_weight.h"
#include "weights/weight_format.h"

namespace millrace::weights {

StoredFormat stored_format(const StoredWeight& weight) {
  if (is_fp8(weight)) return {.kind = StoredFormat::Kind::kFp8, .scale_columns = weight.group_cols};
  const auto layout = code_layout(weight);
  if (!layout) return {};
  if (weight.has_blocks())
    return {.kind = StoredFormat::Kind::kCodes, .layout = *layout, .ggml_type = weight.blocks.ggml_type};
  return {.kind = StoredFormat::Kind::kCodes,
          .layout = *layout,
          .has_zeros = has_zero_points(weight),
          .scale_columns = weight.group_cols};
}

StoredFormat mxfp4_format() {
  return {.kind = StoredFormat::Kind::kCodes,
          .layout = {.values = tensor::CodeValues::kTwiceE2M1},
          .scale_columns = kMxColumns};
}

}  // namespace millrace::weights
