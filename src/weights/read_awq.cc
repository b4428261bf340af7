#include <fmt/format.h>

#include <algorithm>

#include "weights/readers.h"

namespace millrace::weights {
namespace {

/// Reads version gemv: words along the columns. Scales and zero points have groups that no column is in.
Result<void> read_gemv(WeightTensors& tensors, const NamedTensor& codes) {
  constexpr int64_t kUnitCols = 128;  // columns whose zero points a kernel reads at a time, or a group of more
  StoredWeight& weight = tensors.weight;
  const int64_t words = weight.cols / kCodesPerWord;
  if (weight.cols % kCodesPerWord != 0) return codes.wrong(fmt::format("words of {} columns", kCodesPerWord));
  RETURN_IF_ERROR(codes.check_words(weight.rows, words));
  weight.codes = {.kind = CodeKind::kUnsigned, .bits = 4, .bytes = codes.bytes, .row_bytes = words * 4};
  weight.group_cols = tensors.format().group_size;
  if (weight.cols % weight.group_cols != 0)
    return codes.wrong(fmt::format("a multiple of {} columns, those of a group", weight.group_cols));
  const int64_t unit = std::max<int64_t>(kUnitCols / weight.group_cols, 1);
  const int64_t zero_words = (weight.group_count() + kCodesPerWord * unit - 1) / (kCodesPerWord * unit) * unit;
  const int64_t groups = zero_words * kCodesPerWord;
  const auto scales = tensors.required(".scales", codes);
  if (!scales) return scales.error();
  if (!scales->has_shape({weight.rows, groups})) return scales->wrong(fmt::format("[{}, {}]", weight.rows, groups));
  RETURN_IF_ERROR(tensors.set_scales(*scales, groups, 1));
  const auto zeros = tensors.required_words(".qzeros", codes, weight.rows, zero_words);
  if (!zeros) return zeros.error();
  weight.zeros = {.order = ZeroArray::Order::kAlongGroups, .bytes = zeros->bytes, .group_count = groups};
  return {};
}

}  // namespace

Result<void> read_awq(WeightTensors& tensors, const NamedTensor& codes) {
  if (tensors.format().is_awq_gemv) return read_gemv(tensors, codes);
  return read_row_words(tensors, codes, {.scale_suffix = ".scales", .zero_suffix = ".qzeros"});
}

Result<void> read_row_words(WeightTensors& tensors, const NamedTensor& codes, const RowWords& words) {
  StoredWeight& weight = tensors.weight;
  if (weight.rows % kCodesPerWord != 0) return codes.wrong(fmt::format("words of {} rows", kCodesPerWord));
  RETURN_IF_ERROR(codes.check_words(weight.cols, weight.rows / kCodesPerWord));
  weight.codes = {
      .kind = CodeKind::kUnsigned, .order = words.codes, .bits = 4, .sign_bit = words.sign_bit, .bytes = codes.bytes};
  const auto groups = tensors.set_transposed_scales(codes, words.scale_suffix);
  if (!groups) return groups.error();
  const auto zeros = tensors.required_words(words.zero_suffix, codes, *groups, weight.rows / kCodesPerWord);
  if (!zeros) return zeros.error();
  weight.zeros = {.order = words.zeros, .sign_bit = words.sign_bit, .bytes = zeros->bytes, .group_count = *groups};
  return {};
}

}  // namespace millrace::weights
