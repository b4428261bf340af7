#include "weights/weight_tensors.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "weights/companions.h"

namespace millrace::weights {
namespace {

std::optional<ScaleKind> scale_kind(std::string_view dtype) {
  if (dtype == "F32") return ScaleKind::kF32;
  if (dtype == "F16") return ScaleKind::kF16;
  if (dtype == "BF16") return ScaleKind::kBF16;
  if (dtype == "F8_E4M3") return ScaleKind::kE4M3;
  if (dtype == "F8_E8M0" || dtype == "U8") return ScaleKind::kE8M0;
  return std::nullopt;
}

}  // namespace

Error NamedTensor::wrong(std::string_view wanted) const {
  return make_error(ErrorCode::kData, "tensor '{}' is {} [{}], wanted {}", name, dtype, fmt::join(shape, ", "), wanted);
}

bool NamedTensor::has_shape(std::initializer_list<int64_t> wanted) const {
  return std::ranges::equal(shape, wanted);
}

int64_t NamedTensor::elements() const {
  int64_t count = 1;
  for (const int64_t dim : shape) count *= dim;
  return count;
}

Result<void> NamedTensor::check_words(int64_t rows, int64_t cols) const {
  if (dtype != "I32" || !has_shape({rows, cols})) return wrong(fmt::format("I32 [{}, {}]", rows, cols));
  return {};
}

WeightTensors::WeightTensors(const TensorLookup& lookup, const WeightFormat& format, const std::string& name,
                             int64_t rows, int64_t cols, bool has_values)
    : weight{.name = name, .rows = rows, .cols = cols},
      lookup_(lookup),
      format_(format),
      prefix_(name.substr(0, name.size() - kWeightSuffix.size())),
      has_values_(has_values) {}

Result<std::optional<NamedTensor>> WeightTensors::optional(std::string_view suffix) const {
  NamedTensor found;
  found.name = prefix_ + std::string(suffix);
  auto tensor = lookup_(found.name);
  if (!tensor && tensor.error().code == ErrorCode::kNotFound) return std::nullopt;
  if (!tensor) return tensor.error();
  static_cast<RawTensor&>(found) = std::move(*tensor);
  return found;
}

Result<NamedTensor> WeightTensors::required(std::string_view suffix, const NamedTensor& owner) const {
  auto found = optional(suffix);
  if (!found) return found.error();
  if (!*found) return make_error(ErrorCode::kData, "tensor '{}' is stored without '{}{}'", owner.name, prefix_, suffix);
  return std::move(**found);
}

Result<NamedTensor> WeightTensors::required_words(std::string_view suffix, const NamedTensor& owner, int64_t rows,
                                                  int64_t cols) const {
  auto found = required(suffix, owner);
  if (!found) return found.error();
  RETURN_IF_ERROR(found->check_words(rows, cols));
  return found;
}

Result<NamedTensor> WeightTensors::any_scale(std::initializer_list<std::string_view> suffixes,
                                             const NamedTensor& owner) const {
  for (const std::string_view suffix : suffixes) {
    auto found = optional(suffix);
    if (!found) return found.error();
    if (*found) return std::move(**found);
  }
  return make_error(ErrorCode::kData, "tensor '{}' is stored without scales ({})", owner.name,
                    fmt::join(suffixes, ", "));
}

Result<int> WeightTensors::bits_of(const NamedTensor& codes, size_t dim) const {
  std::vector<int> fitting;
  for (int bits = 2; format_.has_exceptions && codes.shape.size() == 2 && bits <= 8; ++bits) {
    if ((format_.widths >> bits & 1) != 0 && (weight.cols * bits + 31) / 32 == codes.shape[dim])
      fitting.push_back(bits);
  }
  if (fitting.size() > 1)
    return codes.wrong(fmt::format("a shape that only one of {} bits has", fmt::join(fitting, " and ")));
  return fitting.empty() ? format_.bits : fitting.front();
}

Result<void> WeightTensors::set_scales(const NamedTensor& found, int64_t row_stride, int64_t group_stride) {
  const auto kind = scale_kind(found.dtype);
  if (!kind) return found.wrong("F32, F16, BF16, F8_E4M3 or F8_E8M0");
  weight.scales.kind = *kind;
  weight.scales.bytes = found.bytes;
  weight.scales.row_stride = row_stride;
  weight.scales.group_stride = group_stride;
  return {};
}

Result<void> WeightTensors::set_groups(const NamedTensor& scales, int64_t groups) {
  if (groups < 1) return scales.wrong("one scale at least");
  if (groups == 1) {
    weight.group_cols = 0;
    return {};
  }
  const auto fits = [&](int64_t size) { return size > 0 && (weight.cols + size - 1) / size == groups; };
  const std::vector<int64_t> stated =
      format_.has_exceptions ? format_.group_sizes : std::vector<int64_t>{format_.group_size};
  const auto size = std::ranges::find_if(stated, fits);
  if (size == stated.end() || std::ranges::count_if(stated, fits) > 1)
    return scales.wrong(fmt::format("the scales of {} columns in groups of one size of [{}], where 0 is a whole row",
                                    weight.cols, fmt::join(stated, ", ")));
  weight.group_cols = *size;
  return {};
}

Result<int64_t> WeightTensors::set_transposed_scales(const NamedTensor& codes, std::string_view suffix) {
  const auto scales = required(suffix, codes);
  if (!scales) return scales.error();
  if (scales->shape.size() != 2 || scales->shape[1] != weight.rows)
    return scales->wrong(fmt::format("[groups, {}]", weight.rows));
  const int64_t groups = scales->shape[0];
  RETURN_IF_ERROR(set_groups(*scales, groups));
  RETURN_IF_ERROR(set_scales(*scales, 1, weight.rows));
  return groups;
}

Result<void> WeightTensors::set_group_index(std::string_view suffix) {
  const auto found = optional(suffix);
  if (!found) return found.error();
  if (!*found) return {};
  const NamedTensor& indices = **found;
  if (indices.dtype != "I32" || !indices.has_shape({weight.cols}))
    return indices.wrong(fmt::format("I32 [{}]", weight.cols));
  if (!has_values_ && format_.has_groups_in_order) return {};
  for (size_t k = 0; k < static_cast<size_t>(weight.cols); ++k) {
    if (indices.at<int32_t>(k) == -1) return {};
  }
  if (weight.group_cols > 0) weight.group_index = indices.bytes;
  return {};
}

}  // namespace millrace::weights
