#include <fmt/format.h>

#include <algorithm>

#include "weights/readers.h"

namespace millrace::weights {
namespace {

constexpr uint8_t kSignBit = 128;

/// Sets the codes of signed integers, which have no other zero point than 0.
Result<void> set_bytes(WeightTensors& tensors, const NamedTensor& codes) {
  StoredWeight& weight = tensors.weight;
  if (!codes.has_shape({weight.rows, weight.cols}))
    return codes.wrong(fmt::format("[{}, {}]", weight.rows, weight.cols));
  weight.codes = {
      .kind = CodeKind::kUnsigned, .bits = 8, .sign_bit = kSignBit, .bytes = codes.bytes, .row_bytes = weight.cols};
  weight.zeros.constant = kSignBit;
  return {};
}

}  // namespace

Result<void> read_bytes(WeightTensors& tensors, const NamedTensor& codes) {
  RETURN_IF_ERROR(set_bytes(tensors, codes));
  const auto zeros = tensors.optional(".weight_zero_point");
  if (!zeros) return zeros.error();
  const auto is_zero = [](std::byte each) { return each == std::byte{0}; };
  if (*zeros && tensors.has_values() && !std::ranges::all_of((**zeros).bytes, is_zero))
    return (**zeros).wrong("zeros, since int8 is symmetric");
  const auto scales = tensors.required(".weight_scale", codes);
  if (!scales) return scales.error();
  const int64_t rows = tensors.weight.rows;
  if (scales->elements() == 1) return tensors.set_scales(*scales, 0, 0);
  if (scales->has_shape({rows}) || scales->has_shape({rows, 1})) return tensors.set_scales(*scales, 1, 0);
  if (tensors.format().method == QuantMethod::kQuark || scales->shape.size() != 2 || scales->shape[0] != rows)
    return scales->wrong(fmt::format("[], [1], [{}], [{}, 1], or groups of [{}, groups]", rows, rows, rows));
  const int64_t groups = scales->shape[1];
  RETURN_IF_ERROR(tensors.set_groups(*scales, groups));
  RETURN_IF_ERROR(tensors.set_group_index(".weight_g_idx"));
  return tensors.set_scales(*scales, groups, 1);
}

Result<void> read_int8_blocks(WeightTensors& tensors, const NamedTensor& codes) {
  RETURN_IF_ERROR(set_bytes(tensors, codes));
  const auto scales = tensors.required(".weight_scale_inv", codes);
  if (!scales) return scales.error();
  return set_block_scales(tensors, *scales);
}

Result<void> read_int4_pairs(WeightTensors& tensors, const NamedTensor& codes) {
  constexpr uint8_t kNibbleSign = 8;
  StoredWeight& weight = tensors.weight;
  if (weight.cols % 2 != 0 || !codes.has_shape({weight.rows, weight.cols / 2}))
    return codes.wrong(fmt::format("[{}, {}] of two codes per byte", weight.rows, (weight.cols + 1) / 2));
  weight.codes = {.kind = CodeKind::kUnsigned,
                  .bits = 4,
                  .sign_bit = kNibbleSign,
                  .bytes = codes.bytes,
                  .row_bytes = weight.cols / 2};
  weight.zeros.constant = kNibbleSign;
  const auto scales = tensors.any_scale({".weight_scale_inv", ".weight_scale"}, codes);
  if (!scales) return scales.error();
  const int64_t stated = tensors.format().group_size;
  weight.group_cols = stated > 0 ? stated : kInt4Columns;
  if (!scales->has_shape({weight.rows, weight.group_count()}))
    return scales->wrong(
        fmt::format("[{}, {}] for groups of {} columns", weight.rows, weight.group_count(), weight.group_cols));
  return tensors.set_scales(*scales, weight.group_count(), 1);
}

}  // namespace millrace::weights
