#include <fmt/format.h>

#include "weights/readers.h"

namespace millrace::weights {

Result<void> set_block_scales(WeightTensors& tensors, const NamedTensor& scales) {
  constexpr int64_t kUsualBlock = 128;
  StoredWeight& weight = tensors.weight;
  const WeightFormat& format = tensors.format();
  weight.group_rows = format.block_rows > 0 ? format.block_rows : kUsualBlock;
  weight.group_cols = format.block_cols > 0 ? format.block_cols : kUsualBlock;
  // MXFP8 among other formats of one checkpoint, as ModelOpt writes it.
  const bool has_powers = scales.dtype == "U8" || scales.dtype == "F8_E8M0";
  if (has_powers && weight.cols % kMxColumns == 0 && scales.has_shape({weight.rows, weight.cols / kMxColumns})) {
    weight.group_rows = 1;
    weight.group_cols = kMxColumns;
  }
  const int64_t row_groups = (weight.rows + weight.group_rows - 1) / weight.group_rows;
  const bool is_plain = scales.has_shape({row_groups, weight.group_count()});
  const bool has_ones = scales.has_shape({row_groups, 1, weight.group_count(), 1});  // ModelOpt
  if (!is_plain && !has_ones)
    return scales.wrong(fmt::format("[], [1], [{}, 1], or [{}, {}] for blocks of {} x {}", weight.rows, row_groups,
                                    weight.group_count(), weight.group_rows, weight.group_cols));
  return tensors.set_scales(scales, weight.group_count(), 1);
}

Result<void> read_fp8(WeightTensors& tensors, const NamedTensor& codes) {
  StoredWeight& weight = tensors.weight;
  if (!codes.has_shape({weight.rows, weight.cols}))
    return codes.wrong(fmt::format("[{}, {}]", weight.rows, weight.cols));
  weight.codes = {.kind = codes.dtype == "F8_E5M2" ? CodeKind::kE5M2 : CodeKind::kE4M3,
                  .bytes = codes.bytes,
                  .row_bytes = weight.cols};
  const auto scales = tensors.any_scale({".weight_scale_inv", ".weight_scale"}, codes);
  if (!scales) return scales.error();
  if (scales->elements() == 1) return tensors.set_scales(*scales, 0, 0);
  if (scales->has_shape({weight.rows, 1}) || scales->has_shape({weight.rows})) return tensors.set_scales(*scales, 1, 0);
  return set_block_scales(tensors, *scales);
}

}  // namespace millrace::weights
