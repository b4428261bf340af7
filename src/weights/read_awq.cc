#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "weights/readers.h"

namespace millrace::weights {
namespace {

/// Sets the groups of versions gemv and gemv_fast. Returns the words of their zero points, which have groups that no
/// column is in.
Result<int64_t> set_padded_groups(WeightTensors& tensors, const NamedTensor& codes) {
  constexpr int64_t kUnitCols = 128;  // columns whose zero points a kernel reads at a time, or a group of more
  StoredWeight& weight = tensors.weight;
  weight.group_cols = tensors.format().group_size;
  if (weight.cols % weight.group_cols != 0)
    return codes.wrong(fmt::format("a multiple of {} columns, those of a group", weight.group_cols));
  const int64_t unit = std::max<int64_t>(kUnitCols / weight.group_cols, 1);
  return (weight.group_count() + kCodesPerWord * unit - 1) / (kCodesPerWord * unit) * unit;
}

/// Reads version gemv: words along the columns.
Result<void> read_gemv(WeightTensors& tensors, const NamedTensor& codes) {
  StoredWeight& weight = tensors.weight;
  const int64_t words = weight.cols / kCodesPerWord;
  if (weight.cols % kCodesPerWord != 0) return codes.wrong(fmt::format("words of {} columns", kCodesPerWord));
  RETURN_IF_ERROR(codes.check_words(weight.rows, words));
  weight.codes = {.kind = CodeKind::kUnsigned, .bits = 4, .bytes = codes.bytes, .row_bytes = words * 4};
  const auto zero_words = set_padded_groups(tensors, codes);
  if (!zero_words) return zero_words.error();
  const int64_t groups = *zero_words * kCodesPerWord;
  const auto scales = tensors.required(".scales", codes);
  if (!scales) return scales.error();
  if (!scales->has_shape({weight.rows, groups})) return scales->wrong(fmt::format("[{}, {}]", weight.rows, groups));
  RETURN_IF_ERROR(tensors.set_scales(*scales, groups, 1));
  const auto zeros = tensors.required_words(".qzeros", codes, weight.rows, *zero_words);
  if (!zeros) return zeros.error();
  weight.zeros = {.order = ZeroArray::Order::kAlongGroups, .bytes = zeros->bytes, .group_count = groups};
  return {};
}

/// Checks that products of zero points and scales, which f16 rounds, have zero points of 4 bits.
Result<void> check_scaled_zeros(const StoredWeight& weight, const NamedTensor& zeros) {
  constexpr float kMaxError = 1.0f / 64;  // f16 has 11 bits
  for (int64_t group = 0; group < weight.group_count(); ++group) {
    for (int64_t row = 0; row < weight.rows; ++row) {
      const auto at = static_cast<size_t>(group * weight.rows + row);
      const float product = zeros.at<tensor::Float16>(at).to_float();
      const float scale = group_scale(weight, row, group);
      const float zero = scale == 0 ? -product : -product / scale;
      const float nearest = std::round(zero);
      // A zero point that is no number fails, too.
      if (std::abs(zero - nearest) <= kMaxError && nearest >= 0 && nearest <= 15) continue;
      return make_error(
          ErrorCode::kData,
          "tensor '{}': {} of row {} and group {} is no product of the scale {} and a zero point from 0 to "
          "15, negated",
          zeros.name, product, row, group, scale);
    }
  }
  return {};
}

/// Reads version gemv_fast: tiles of rows and columns. Scales and zero points lie group by group.
Result<void> read_gemv_fast(WeightTensors& tensors, const NamedTensor& codes) {
  constexpr int64_t kTileRows = 4;
  constexpr int64_t kTileCols = 64;
  StoredWeight& weight = tensors.weight;
  const bool has_tiles = weight.rows % kTileRows == 0 && weight.cols % kTileCols == 0;
  if (codes.dtype != "I16" || !has_tiles || !codes.has_shape({weight.rows / kTileRows, weight.cols}))
    return codes.wrong(
        fmt::format("I16 [{} / {}, {}] in tiles of {} columns", weight.rows, kTileRows, weight.cols, kTileCols));
  weight.codes = {.kind = CodeKind::kUnsigned, .order = CodeOrder::kTilesAwq, .bits = 4, .bytes = codes.bytes};
  const auto zero_words = set_padded_groups(tensors, codes);
  if (!zero_words) return zero_words.error();
  const int64_t groups = *zero_words * kCodesPerWord;
  const auto scales = tensors.required(".scales", codes);
  if (!scales) return scales.error();
  if (!scales->has_shape({groups, weight.rows})) return scales->wrong(fmt::format("[{}, {}]", groups, weight.rows));
  RETURN_IF_ERROR(tensors.set_scales(*scales, 1, weight.rows));
  const auto older = tensors.optional(".scaled_zeros");  // the name in older releases of AutoAWQ
  if (!older) return older.error();
  const Result<NamedTensor> zeros = *older ? Result<NamedTensor>(**older) : tensors.required(".qzeros", codes);
  if (!zeros) return zeros.error();
  if (zeros->dtype != "F16" || !zeros->has_shape({groups, weight.rows}))
    return zeros->wrong(fmt::format("F16 [{}, {}]", groups, weight.rows));
  weight.zeros = {.order = ZeroArray::Order::kScaled, .bytes = zeros->bytes, .group_count = groups};
  return tensors.has_values() ? check_scaled_zeros(weight, *zeros) : Result<void>{};
}

}  // namespace

Result<void> read_awq(WeightTensors& tensors, const NamedTensor& codes) {
  switch (tensors.format().awq_version) {
    case AwqVersion::kGemv: return read_gemv(tensors, codes);
    case AwqVersion::kGemvFast: return read_gemv_fast(tensors, codes);
    case AwqVersion::kGemm: break;
  }
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
