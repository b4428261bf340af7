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

Result<void> read_quark_bytes(WeightTensors& tensors, const NamedTensor& codes) {
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
  if (!scales->has_shape({rows}) && !scales->has_shape({rows, 1}))
    return scales->wrong(fmt::format("[], [1], [{}] or [{}, 1]", rows, rows));
  return tensors.set_scales(*scales, 1, 0);
}

Result<void> read_int8_blocks(WeightTensors& tensors, const NamedTensor& codes) {
  RETURN_IF_ERROR(set_bytes(tensors, codes));
  const auto scales = tensors.required(".weight_scale_inv", codes);
  if (!scales) return scales.error();
  return set_block_scales(tensors, *scales);
}

}  // namespace millrace::weights
