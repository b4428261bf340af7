#include <fmt/format.h>

#include "weights/readers.h"

namespace millrace::weights {
namespace {

/// Sets the scale of the whole tensor.
Result<void> set_factor(WeightTensors& tensors, const NamedTensor& codes) {
  const auto factor = tensors.any_scale({".weight_global_scale", ".weight_scale_2"}, codes);
  if (!factor) return factor.error();
  if (factor->dtype != "F32" || factor->elements() != 1) return factor->wrong("one F32");
  if (!tensors.has_values()) return {};
  ScaleArray& scales = tensors.weight.scales;
  // compressed-tensors stores the reciprocal.
  (factor->name.ends_with(".weight_global_scale") ? scales.divisor : scales.factor) = factor->at<float>(0);
  return {};
}

}  // namespace

Result<void> read_fp4(WeightTensors& tensors, const NamedTensor& codes) {
  StoredWeight& weight = tensors.weight;
  if (weight.cols % 2 != 0 || !codes.has_shape({weight.rows, weight.cols / 2}))
    return codes.wrong(fmt::format("[{}, {}]", weight.rows, weight.cols / 2));
  weight.codes = {.kind = CodeKind::kE2M1, .bits = 4, .bytes = codes.bytes, .row_bytes = weight.cols / 2};
  const auto scales = tensors.required(".weight_scale", codes);
  if (!scales) return scales.error();
  const bool is_nvfp4 = scales->dtype == "F8_E4M3";
  constexpr int64_t kNvfp4Columns = 16;
  weight.group_cols = is_nvfp4 ? kNvfp4Columns : kMxColumns;
  const int64_t groups = weight.cols / weight.group_cols;
  if (weight.cols % weight.group_cols != 0 || !scales->has_shape({weight.rows, groups}))
    return scales->wrong(fmt::format("[{}, {}]", weight.rows, groups));
  RETURN_IF_ERROR(tensors.set_scales(*scales, groups, 1));
  if (!is_nvfp4) return {};
  return set_factor(tensors, codes);
}

}  // namespace millrace::weights
