#include <fmt/format.h>

#include <algorithm>

#include "weights/readers.h"

namespace millrace::weights {
namespace {

Result<void> check_stated_shape(const WeightTensors& tensors, const NamedTensor& codes) {
  const auto shape = tensors.optional(".weight_shape");
  if (!shape) return shape.error();
  if (!*shape) return {};
  const bool is_wide = (**shape).dtype == "I64";
  if ((!is_wide && (**shape).dtype != "I32") || !(**shape).has_shape({2})) return (**shape).wrong("I64 or I32 [2]");
  if (!tensors.has_values()) return {};
  const auto side = [&](size_t index) {
    return is_wide ? (**shape).at<int64_t>(index) : int64_t{(**shape).at<int32_t>(index)};
  };
  const int64_t rows = side(0);
  const int64_t cols = side(1);
  if (rows != tensors.weight.rows || cols != tensors.weight.cols)
    return make_error(ErrorCode::kData, "tensor '{}' is [{}, {}] by its weight_shape, wanted [{}, {}]", codes.name,
                      rows, cols, tensors.weight.rows, tensors.weight.cols);
  return {};
}

/// Returns whether zero points are those that some writers leave in symmetric checkpoints: unpacked, and all 0.
bool are_unpacked_zeros(const NamedTensor& zeros, int64_t rows, int64_t groups, bool has_values) {
  if (zeros.dtype != "I8" || !zeros.has_shape({rows, groups})) return false;
  return !has_values || std::ranges::all_of(zeros.bytes, [](std::byte each) { return each == std::byte{0}; });
}

}  // namespace

Result<void> read_packed(WeightTensors& tensors, const NamedTensor& codes) {
  StoredWeight& weight = tensors.weight;
  const auto width = tensors.bits_of(codes, 1);
  if (!width) return width.error();
  const int bits = *width;
  const int64_t words = (weight.cols * bits + 31) / 32;
  if (codes.dtype != "I32" || bits == 0 || !codes.has_shape({weight.rows, words}))
    return codes.wrong(fmt::format("I32 [{}, {}] of {} bits", weight.rows, words, bits));
  weight.codes = {.kind = CodeKind::kUnsigned, .bits = bits, .bytes = codes.bytes, .row_bytes = words * 4};
  weight.zeros.constant = 1 << (bits - 1);
  RETURN_IF_ERROR(check_stated_shape(tensors, codes));
  const auto scales = tensors.required(".weight_scale", codes);
  if (!scales) return scales.error();
  if (scales->shape.size() != 2 || scales->shape[0] != weight.rows)
    return scales->wrong(fmt::format("[{}, groups]", weight.rows));
  const int64_t groups = scales->shape[1];
  RETURN_IF_ERROR(tensors.set_groups(*scales, groups));
  RETURN_IF_ERROR(tensors.set_scales(*scales, groups, 1));
  RETURN_IF_ERROR(tensors.set_group_index(".weight_g_idx"));
  const auto zeros = tensors.optional(".weight_zero_point");
  if (!zeros) return zeros.error();
  if (!*zeros || are_unpacked_zeros(**zeros, weight.rows, groups, tensors.has_values())) return {};
  RETURN_IF_ERROR((**zeros).check_words((weight.rows * bits + 31) / 32, groups));
  weight.zeros = {.order = ZeroArray::Order::kDownN, .bytes = (**zeros).bytes, .group_count = groups};
  return {};
}

}  // namespace millrace::weights
