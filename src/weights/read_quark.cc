#include <fmt/format.h>

#include "weights/readers.h"

namespace millrace::weights {
namespace {

/// Reads a scale and a zero point per row. Words lie along the columns, those of zero points along the rows.
Result<void> read_rows(WeightTensors& tensors, const NamedTensor& codes, const NamedTensor& scales,
                       const RowWords& words) {
  StoredWeight& weight = tensors.weight;
  if (weight.cols % kCodesPerWord != 0 || weight.rows % kCodesPerWord != 0)
    return codes.wrong(fmt::format("words of {} rows and columns", kCodesPerWord));
  RETURN_IF_ERROR(codes.check_words(weight.rows, weight.cols / kCodesPerWord));
  weight.codes = {.kind = CodeKind::kUnsigned,
                  .order = words.codes == CodeOrder::kNibblesAwq ? CodeOrder::kRowsAwq : CodeOrder::kRows,
                  .bits = 4,
                  .sign_bit = words.sign_bit,
                  .bytes = codes.bytes,
                  .row_bytes = weight.cols / 2};
  if (!scales.has_shape({weight.rows})) return scales.wrong(fmt::format("[{}]", weight.rows));
  RETURN_IF_ERROR(tensors.set_scales(scales, 1, 0));
  const auto zeros = tensors.required(words.zero_suffix, codes);
  if (!zeros) return zeros.error();
  if (zeros->dtype != "I32" || !zeros->has_shape({weight.rows / kCodesPerWord}))
    return zeros->wrong(fmt::format("I32 [{}]", weight.rows / kCodesPerWord));
  weight.zeros = {.order = words.zeros, .sign_bit = words.sign_bit, .bytes = zeros->bytes, .group_count = 1};
  return {};
}

}  // namespace

Result<void> read_quark(WeightTensors& tensors, const NamedTensor& codes) {
  RowWords words{.sign_bit = static_cast<uint8_t>(tensors.format().has_signed_codes ? 8 : 0),
                 .scale_suffix = ".weight_scale",
                 .zero_suffix = ".weight_zero_point"};
  if (tensors.format().is_in_order) {
    words.codes = CodeOrder::kNibblesDownN;
    words.zeros = ZeroArray::Order::kAlongN;
  }
  const auto scales = tensors.required(words.scale_suffix, codes);
  if (!scales) return scales.error();
  return scales->shape.size() == 1 ? read_rows(tensors, codes, *scales, words) : read_row_words(tensors, codes, words);
}

}  // namespace millrace::weights
