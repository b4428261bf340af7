#include "weights/find_weight.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <vector>

namespace millrace::weights {
namespace {

constexpr std::string_view kWeight = ".weight";
/// The suffixes in place of ".weight", or in addition to it.
constexpr std::array<std::string_view, 16> kCompanions = {".weight_packed",
                                                          ".weight_scale",
                                                          ".weight_scale_inv",
                                                          ".weight_scale_2",
                                                          ".weight_global_scale",
                                                          ".input_global_scale",
                                                          ".weight_zero_point",
                                                          ".weight_g_idx",
                                                          ".weight_shape",
                                                          ".input_scale",
                                                          ".input_scale_2",
                                                          ".activation_scale",
                                                          ".qweight",
                                                          ".qzeros",
                                                          ".scales",
                                                          ".g_idx"};

/// A tensor and what it is called in errors.
struct Found {
  std::string name;
  RawTensor tensor;

  [[nodiscard]] Error wrong(const std::string& wanted) const {
    return make_error(ErrorCode::kData, "tensor '{}' is {} [{}], wanted {}", name, tensor.dtype,
                      fmt::join(tensor.shape, ", "), wanted);
  }
  [[nodiscard]] bool has_shape(std::initializer_list<int64_t> shape) const {
    return std::ranges::equal(tensor.shape, shape);
  }
  [[nodiscard]] int64_t elements() const {
    int64_t count = 1;
    for (const int64_t dim : tensor.shape) count *= dim;
    return count;
  }
};

/// Finds the parts of one weight.
class WeightFinder {
 public:
  WeightFinder(const TensorLookup& lookup, const WeightFormat& format, const std::string& name, int64_t rows,
               int64_t cols, bool has_values = true)
      : lookup_(lookup),
        format_(format),
        prefix_(name.substr(0, name.size() - kWeight.size())),
        has_values_(has_values) {
    weight_.name = name;
    weight_.rows = rows;
    weight_.cols = cols;
  }

  Result<std::optional<StoredWeight>> find() {
    auto found = find_format();
    if (!found || !*found || !has_values_) return found;
    const auto checked = check_stored(weight_);
    if (!checked) return checked.error();
    return std::optional(weight_);
  }

 private:
  using Outcome = Result<std::optional<StoredWeight>>;

  Outcome find_format() {
    const auto packed = optional(".weight_packed");
    if (!packed) return packed.error();
    if (*packed) return (**packed).tensor.dtype == "U8" ? find_fp4(**packed) : find_packed(**packed);
    const auto qweight = optional(".qweight");
    if (!qweight) return qweight.error();
    if (*qweight) return format_.method == QuantMethod::kAwq ? find_awq(**qweight) : find_gptq(**qweight);
    const auto plain = optional(kWeight);
    if (!plain) return plain.error();
    if (!*plain) return std::optional<StoredWeight>();
    if ((**plain).tensor.dtype == "F8_E4M3" || (**plain).tensor.dtype == "F8_E5M2") return find_fp8(**plain);
    if ((**plain).tensor.dtype == "U8") return find_fp4(**plain);
    if ((**plain).tensor.dtype == "I32" && format_.method == QuantMethod::kQuark) return find_quark(**plain);
    return std::optional<StoredWeight>();
  }

  /// Returns a tensor that may be absent.
  Result<std::optional<Found>> optional(std::string_view suffix) {
    Found found{.name = prefix_ + std::string(suffix), .tensor = {}};
    auto tensor = lookup_(found.name);
    if (!tensor && tensor.error().code == ErrorCode::kNotFound) return std::optional<Found>();
    if (!tensor) return tensor.error();
    found.tensor = std::move(*tensor);
    return std::optional(std::move(found));
  }
  Result<Found> required(std::string_view suffix, std::string_view owner) {
    auto found = optional(suffix);
    if (!found) return found.error();
    if (!*found) return make_error(ErrorCode::kData, "tensor '{}' is stored without '{}{}'", owner, prefix_, suffix);
    return std::move(**found);
  }

  /// Returns the first of several scales that is there.
  Result<Found> any_scale(std::initializer_list<std::string_view> suffixes, std::string_view owner) {
    for (const std::string_view suffix : suffixes) {
      auto found = optional(suffix);
      if (!found) return found.error();
      if (*found) return std::move(**found);
    }
    return make_error(ErrorCode::kData, "tensor '{}' is stored without scales ({})", owner, fmt::join(suffixes, ", "));
  }

  static std::optional<ScaleKind> scale_kind(std::string_view dtype) {
    if (dtype == "F32") return ScaleKind::kF32;
    if (dtype == "F16") return ScaleKind::kF16;
    if (dtype == "BF16") return ScaleKind::kBF16;
    if (dtype == "F8_E4M3") return ScaleKind::kE4M3;
    if (dtype == "F8_E8M0" || dtype == "U8") return ScaleKind::kE8M0;
    return std::nullopt;
  }

  Result<void> set_scales(const Found& found, int64_t row_stride, int64_t group_stride) {
    const auto kind = scale_kind(found.tensor.dtype);
    if (!kind) return found.wrong("F32, F16, BF16, F8_E4M3 or F8_E8M0");
    weight_.scales.kind = *kind;
    weight_.scales.bytes = found.tensor.bytes;
    weight_.scales.row_stride = row_stride;
    weight_.scales.group_stride = group_stride;
    return {};
  }

  /// Returns the number of groups, and sets it, where `groups` scales lie along the columns.
  Result<void> set_groups(const Found& scales, int64_t groups) {
    if (groups < 1) return scales.wrong("one scale at least");
    if (groups == 1) {
      weight_.group_cols = 0;
      return {};
    }
    const auto fits = [&](int64_t size) { return size > 0 && (weight_.cols + size - 1) / size == groups; };
    const std::vector<int64_t> stated =
        format_.has_exceptions ? format_.group_sizes : std::vector<int64_t>{format_.group_size};
    const auto size = std::ranges::find_if(stated, fits);
    if (size == stated.end() || std::ranges::count_if(stated, fits) > 1)
      return scales.wrong(fmt::format("the scales of {} columns in groups of one size of [{}], where 0 is a whole row",
                                      weight_.cols, fmt::join(stated, ", ")));
    weight_.group_cols = *size;
    return {};
  }

  Outcome find_fp8(const Found& codes) {
    if (!codes.has_shape({weight_.rows, weight_.cols}))
      return codes.wrong(fmt::format("[{}, {}]", weight_.rows, weight_.cols));
    weight_.codes = {.kind = codes.tensor.dtype == "F8_E5M2" ? CodeKind::kE5M2 : CodeKind::kE4M3,
                     .bytes = codes.tensor.bytes,
                     .row_bytes = weight_.cols};
    const auto scales = any_scale({".weight_scale_inv", ".weight_scale"}, codes.name);
    if (!scales) return scales.error();
    if (scales->elements() == 1) {
      RETURN_IF_ERROR(set_scales(*scales, 0, 0));
    } else if (scales->has_shape({weight_.rows, 1}) || scales->has_shape({weight_.rows})) {
      RETURN_IF_ERROR(set_scales(*scales, 1, 0));
    } else {
      RETURN_IF_ERROR(set_block_scales(*scales));
    }
    return std::optional(weight_);
  }

  Result<void> set_block_scales(const Found& scales) {
    constexpr int64_t kUsualBlock = 128;
    weight_.group_rows = format_.block_rows > 0 ? format_.block_rows : kUsualBlock;
    weight_.group_cols = format_.block_cols > 0 ? format_.block_cols : kUsualBlock;
    // MXFP8 beside other formats of one checkpoint, as ModelOpt writes it.
    const bool has_powers = scales.tensor.dtype == "U8" || scales.tensor.dtype == "F8_E8M0";
    if (has_powers && weight_.cols % kMxColumns == 0 && scales.has_shape({weight_.rows, weight_.cols / kMxColumns})) {
      weight_.group_rows = 1;
      weight_.group_cols = kMxColumns;
    }
    const int64_t row_groups = (weight_.rows + weight_.group_rows - 1) / weight_.group_rows;
    const bool is_plain = scales.has_shape({row_groups, weight_.group_count()});
    const bool has_ones = scales.has_shape({row_groups, 1, weight_.group_count(), 1});  // ModelOpt
    if (!is_plain && !has_ones)
      return scales.wrong(fmt::format("[], [1], [{}, 1], or [{}, {}] for blocks of {} x {}", weight_.rows, row_groups,
                                      weight_.group_count(), weight_.group_rows, weight_.group_cols));
    return set_scales(scales, weight_.group_count(), 1);
  }

  /// MXFP4 and NVFP4, two codes per byte.
  Outcome find_fp4(const Found& codes) {
    if (weight_.cols % 2 != 0 || !codes.has_shape({weight_.rows, weight_.cols / 2}))
      return codes.wrong(fmt::format("[{}, {}]", weight_.rows, weight_.cols / 2));
    weight_.codes = {.kind = CodeKind::kE2M1, .bits = 4, .bytes = codes.tensor.bytes, .row_bytes = weight_.cols / 2};
    const auto scales = required(".weight_scale", codes.name);
    if (!scales) return scales.error();
    const bool is_nvfp4 = scales->tensor.dtype == "F8_E4M3";
    weight_.group_cols = is_nvfp4 ? 16 : 32;
    const int64_t groups = weight_.cols / weight_.group_cols;
    if (weight_.cols % weight_.group_cols != 0 || !scales->has_shape({weight_.rows, groups}))
      return scales->wrong(fmt::format("[{}, {}]", weight_.rows, groups));
    RETURN_IF_ERROR(set_scales(*scales, groups, 1));
    if (!is_nvfp4) return std::optional(weight_);
    const auto factor = any_scale({".weight_global_scale", ".weight_scale_2"}, codes.name);
    if (!factor) return factor.error();
    if (factor->tensor.dtype != "F32" || factor->elements() != 1) return factor->wrong("one F32");
    if (!has_values_) return std::optional(weight_);
    float value = 0;
    std::copy_n(factor->tensor.bytes.data(), sizeof(value), reinterpret_cast<std::byte*>(&value));
    // compressed-tensors stores the reciprocal.
    (factor->name.ends_with(".weight_global_scale") ? weight_.scales.divisor : weight_.scales.factor) = value;
    return std::optional(weight_);
  }

  /// Returns the bits of codes that are stored in `codes.shape[dim]` words; those of the format where none fit.
  Result<int> bits_of(const Found& codes, size_t dim) const {
    std::vector<int> fitting;
    for (int bits = 2; format_.has_exceptions && codes.tensor.shape.size() == 2 && bits <= 8; ++bits) {
      if ((format_.widths >> bits & 1) != 0 && (weight_.cols * bits + 31) / 32 == codes.tensor.shape[dim])
        fitting.push_back(bits);
    }
    if (fitting.size() > 1)
      return codes.wrong(fmt::format("a shape that only one of {} bits has", fmt::join(fitting, " and ")));
    return fitting.empty() ? format_.bits : fitting.front();
  }

  /// compressed-tensors' pack-quantized: words along the columns.
  Outcome find_packed(const Found& codes) {
    const auto width = bits_of(codes, 1);
    if (!width) return width.error();
    const int bits = *width;
    const int64_t words = (weight_.cols * bits + 31) / 32;
    if (codes.tensor.dtype != "I32" || bits == 0 || !codes.has_shape({weight_.rows, words}))
      return codes.wrong(fmt::format("I32 [{}, {}] of {} bits", weight_.rows, words, bits));
    weight_.codes = {.kind = CodeKind::kUnsigned, .bits = bits, .bytes = codes.tensor.bytes, .row_bytes = words * 4};
    weight_.zeros.constant = 1 << (bits - 1);
    RETURN_IF_ERROR(check_packed_shape(codes));
    const auto scales = required(".weight_scale", codes.name);
    if (!scales) return scales.error();
    if (scales->tensor.shape.size() != 2 || scales->tensor.shape[0] != weight_.rows)
      return scales->wrong(fmt::format("[{}, groups]", weight_.rows));
    const int64_t groups = scales->tensor.shape[1];
    const auto indices = optional(".weight_g_idx");
    if (!indices) return indices.error();
    RETURN_IF_ERROR(set_groups(*scales, groups));
    RETURN_IF_ERROR(set_scales(*scales, groups, 1));
    if (*indices) RETURN_IF_ERROR(set_group_index(**indices));
    const auto zeros = optional(".weight_zero_point");
    if (!zeros) return zeros.error();
    if (!*zeros) return std::optional(weight_);
    if ((**zeros).tensor.dtype != "I32" || !(**zeros).has_shape({(weight_.rows * bits + 31) / 32, groups}))
      return (**zeros).wrong(fmt::format("I32 [{}, {}]", (weight_.rows * bits + 31) / 32, groups));
    weight_.zeros = {.order = ZeroArray::Order::kDownN, .bytes = (**zeros).tensor.bytes, .group_count = groups};
    return std::optional(weight_);
  }

  Result<void> check_packed_shape(const Found& codes) {
    const auto shape = optional(".weight_shape");
    if (!shape) return shape.error();
    if (!*shape) return {};
    int64_t sizes[2] = {};
    if ((**shape).tensor.dtype != "I64" || !(**shape).has_shape({2})) return (**shape).wrong("I64 [2]");
    if (!has_values_) return {};
    std::copy_n((**shape).tensor.bytes.data(), sizeof(sizes), reinterpret_cast<std::byte*>(sizes));
    if (sizes[0] != weight_.rows || sizes[1] != weight_.cols)
      return make_error(ErrorCode::kData, "tensor '{}' is [{}, {}] by its weight_shape, wanted [{}, {}]", codes.name,
                        sizes[0], sizes[1], weight_.rows, weight_.cols);
    return {};
  }

  /// Sets the group of each column. An index of -1 says that the order is not used.
  Result<void> set_group_index(const Found& indices) {
    if (indices.tensor.dtype != "I32" || !indices.has_shape({weight_.cols}))
      return indices.wrong(fmt::format("I32 [{}]", weight_.cols));
    const std::byte* const at = indices.tensor.bytes.data();
    for (int64_t k = 0; k < weight_.cols; ++k) {
      int32_t group = 0;
      std::copy_n(at + k * 4, sizeof(group), reinterpret_cast<std::byte*>(&group));
      if (group == -1) return {};
    }
    if (weight_.group_cols > 0) weight_.group_index = indices.tensor.bytes;
    return {};
  }

  Outcome find_gptq(const Found& codes) {
    const auto width = bits_of(codes, 0);
    if (!width) return width.error();
    const int bits = *width;
    if (format_.method != QuantMethod::kGptq)
      return make_error(ErrorCode::kData, "tensor '{}' is of GPTQ or AWQ, which quantization_config does not say",
                        codes.name);
    const int64_t words = weight_.cols * bits / 32;
    if (codes.tensor.dtype != "I32" || weight_.cols * bits % 32 != 0 || weight_.rows * bits % 32 != 0 || bits == 0 ||
        !codes.has_shape({words, weight_.rows}))
      return codes.wrong(fmt::format("I32 [{}, {}] of {} bits", words, weight_.rows, bits));
    weight_.codes = {
        .kind = CodeKind::kUnsigned, .order = CodeOrder::kWordsDownK, .bits = bits, .bytes = codes.tensor.bytes};
    const auto groups = set_transposed_scales(codes);
    if (!groups) return groups.error();
    const auto zeros = required(".qzeros", codes.name);
    if (!zeros) return zeros.error();
    const int64_t zero_words = weight_.rows * bits / 32;
    if (zeros->tensor.dtype != "I32" || !zeros->has_shape({*groups, zero_words}))
      return zeros->wrong(fmt::format("I32 [{}, {}]", *groups, zero_words));
    weight_.zeros = {.order = ZeroArray::Order::kAlongN,
                     .offset = format_.is_gptq_v2 ? 0 : 1,
                     .bytes = zeros->tensor.bytes,
                     .group_count = *groups};
    RETURN_IF_ERROR(refuse_wrapped_zeros(*zeros, bits));
    const auto indices = optional(".g_idx");
    if (!indices) return indices.error();
    if (*indices) RETURN_IF_ERROR(set_group_index(**indices));
    return std::optional(weight_);
  }

  /// Version 1 stores a zero point minus one, so that 0 wraps: writers and readers disagree on what it means.
  Result<void> refuse_wrapped_zeros(const Found& zeros, int bits) const {
    if (!has_values_ || format_.is_gptq_v2 || 32 % bits != 0) return {};
    const uint32_t largest = (1u << bits) - 1;
    for (size_t at = 0; at + 4 <= zeros.tensor.bytes.size(); at += 4) {
      uint32_t word = 0;
      std::copy_n(zeros.tensor.bytes.data() + at, sizeof(word), reinterpret_cast<std::byte*>(&word));
      for (int shift = 0; shift < 32; shift += bits) {
        if ((word >> shift & largest) == largest)
          return make_error(ErrorCode::kData,
                            "tensor '{}' stores the zero point {}, which readers of this format take for different "
                            "numbers; wanted a checkpoint of format gptq_v2",
                            zeros.name, largest);
      }
    }
    return {};
  }

  /// Sets scales [groups, rows], and returns the number of groups.
  Result<int64_t> set_transposed_scales(const Found& codes, std::string_view suffix = ".scales") {
    const auto scales = required(suffix, codes.name);
    if (!scales) return scales.error();
    if (scales->tensor.shape.size() != 2 || scales->tensor.shape[1] != weight_.rows)
      return scales->wrong(fmt::format("[groups, {}]", weight_.rows));
    const int64_t groups = scales->tensor.shape[0];
    RETURN_IF_ERROR(set_groups(*scales, groups));
    RETURN_IF_ERROR(set_scales(*scales, 1, weight_.rows));
    return groups;
  }

  Outcome find_awq(const Found& codes) {
    if (format_.is_awq_gemv) return find_awq_gemv(codes);
    if (codes.tensor.dtype != "I32" || weight_.rows % 8 != 0 || !codes.has_shape({weight_.cols, weight_.rows / 8}))
      return codes.wrong(fmt::format("I32 [{}, {}]", weight_.cols, weight_.rows / 8));
    weight_.codes = {
        .kind = CodeKind::kUnsigned, .order = CodeOrder::kNibblesAwq, .bits = 4, .bytes = codes.tensor.bytes};
    const auto groups = set_transposed_scales(codes);
    if (!groups) return groups.error();
    const auto zeros = required(".qzeros", codes.name);
    if (!zeros) return zeros.error();
    if (zeros->tensor.dtype != "I32" || !zeros->has_shape({*groups, weight_.rows / 8}))
      return zeros->wrong(fmt::format("I32 [{}, {}]", *groups, weight_.rows / 8));
    weight_.zeros = {.order = ZeroArray::Order::kNibblesAwq, .bytes = zeros->tensor.bytes, .group_count = *groups};
    return std::optional(weight_);
  }

  /// Integers of Quark, in words of 8 rows as those of AWQ.
  Outcome find_quark(const Found& codes) {
    if (weight_.rows % 8 != 0 || !codes.has_shape({weight_.cols, weight_.rows / 8}))
      return codes.wrong(fmt::format("I32 [{}, {}]", weight_.cols, weight_.rows / 8));
    const auto sign_bit = static_cast<uint8_t>(format_.has_signed_codes ? 8 : 0);
    weight_.codes = {.kind = CodeKind::kUnsigned,
                     .order = format_.is_in_order ? CodeOrder::kNibblesDownN : CodeOrder::kNibblesAwq,
                     .bits = 4,
                     .sign_bit = sign_bit,
                     .bytes = codes.tensor.bytes};
    const auto groups = set_transposed_scales(codes, ".weight_scale");
    if (!groups) return groups.error();
    const auto zeros = required(".weight_zero_point", codes.name);
    if (!zeros) return zeros.error();
    if (zeros->tensor.dtype != "I32" || !zeros->has_shape({*groups, weight_.rows / 8}))
      return zeros->wrong(fmt::format("I32 [{}, {}]", *groups, weight_.rows / 8));
    weight_.zeros = {.order = format_.is_in_order ? ZeroArray::Order::kAlongN : ZeroArray::Order::kNibblesAwq,
                     .sign_bit = sign_bit,
                     .bytes = zeros->tensor.bytes,
                     .group_count = *groups};
    return std::optional(weight_);
  }

  /// AWQ of version gemv: words along the columns. Scales and zero points have groups that no column is in.
  Outcome find_awq_gemv(const Found& codes) {
    constexpr int64_t kCodesPerWord = 8;
    constexpr int64_t kUnitCols = 128;  // columns whose zero points a kernel reads at a time, or a group of more
    const int64_t words = weight_.cols / kCodesPerWord;
    if (codes.tensor.dtype != "I32" || weight_.cols % kCodesPerWord != 0 || !codes.has_shape({weight_.rows, words}))
      return codes.wrong(fmt::format("I32 [{}, {}]", weight_.rows, words));
    weight_.codes = {.kind = CodeKind::kUnsigned, .bits = 4, .bytes = codes.tensor.bytes, .row_bytes = words * 4};
    weight_.group_cols = format_.group_size;
    if (weight_.cols % weight_.group_cols != 0)
      return codes.wrong(fmt::format("a multiple of {} columns, those of a group", weight_.group_cols));
    const int64_t unit = std::max<int64_t>(kUnitCols / weight_.group_cols, 1);
    const int64_t zero_words = (weight_.group_count() + kCodesPerWord * unit - 1) / (kCodesPerWord * unit) * unit;
    const auto scales = required(".scales", codes.name);
    if (!scales) return scales.error();
    if (!scales->has_shape({weight_.rows, zero_words * kCodesPerWord}))
      return scales->wrong(fmt::format("[{}, {}]", weight_.rows, zero_words * kCodesPerWord));
    RETURN_IF_ERROR(set_scales(*scales, zero_words * kCodesPerWord, 1));
    const auto zeros = required(".qzeros", codes.name);
    if (!zeros) return zeros.error();
    if (zeros->tensor.dtype != "I32" || !zeros->has_shape({weight_.rows, zero_words}))
      return zeros->wrong(fmt::format("I32 [{}, {}]", weight_.rows, zero_words));
    weight_.zeros = {.order = ZeroArray::Order::kAlongGroups,
                     .bytes = zeros->tensor.bytes,
                     .group_count = zero_words * kCodesPerWord};
    return std::optional(weight_);
  }

  const TensorLookup& lookup_;
  const WeightFormat& format_;
  const std::string prefix_;
  const bool has_values_;  // else those of group indices alone
  StoredWeight weight_;
};

}  // namespace

std::vector<std::string> companion_names(std::string_view weight_name) {
  std::vector<std::string> names;
  if (!weight_name.ends_with(kWeight)) return names;
  const std::string prefix(weight_name.substr(0, weight_name.size() - kWeight.size()));
  for (const std::string_view suffix : kCompanions) names.push_back(prefix + std::string(suffix));
  return names;
}

std::vector<std::string> code_names(std::string_view weight_name) {
  std::vector<std::string> names = companion_names(weight_name);
  std::erase_if(
      names, [](const std::string& name) { return !name.ends_with(".weight_packed") && !name.ends_with(".qweight"); });
  return names;
}

std::vector<std::string> value_names(std::string_view weight_name) {
  std::vector<std::string> names = companion_names(weight_name);
  std::erase_if(names, [](const std::string& name) {
    const std::string_view ending = std::string_view(name).substr(name.rfind('.'));
    return ending.starts_with(".input_") || ending.starts_with(".activation_");
  });
  return names;
}

std::optional<std::string> weight_of_companion(std::string_view name) {
  for (const std::string_view suffix : kCompanions) {
    if (name.ends_with(suffix)) return std::string(name.substr(0, name.size() - suffix.size())) + std::string(kWeight);
  }
  return std::nullopt;
}

Result<std::optional<StoredWeight>> find_stored_weight(const TensorLookup& lookup, const WeightFormat& format,
                                                       const std::string& weight_name, int64_t rows, int64_t cols) {
  if (!weight_name.ends_with(kWeight)) return std::optional<StoredWeight>();
  return WeightFinder(lookup, format, weight_name, rows, cols).find();
}

std::vector<std::string> group_index_names(std::string_view weight_name) {
  std::vector<std::string> names = companion_names(weight_name);
  std::erase_if(names, [](const std::string& name) { return !name.ends_with("g_idx"); });
  return names;
}

Result<std::optional<StoredFormat>> find_stored_format(const TensorLookup& lookup, const WeightFormat& format,
                                                       const std::string& weight_name, int64_t rows, int64_t cols) {
  if (!weight_name.ends_with(kWeight)) return std::optional<StoredFormat>();
  const auto found = WeightFinder(lookup, format, weight_name, rows, cols, false).find();
  if (!found) return found.error();
  return *found ? std::optional(stored_format(**found)) : std::nullopt;
}

}  // namespace millrace::weights
