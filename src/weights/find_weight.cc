#include "weights/find_weight.h"

#include "weights/companions.h"
#include "weights/readers.h"

namespace millrace::weights {
namespace {

/// The tensor of a weight's codes, and what reads it.
struct CodesToRead {
  NamedTensor tensor;
  Result<void> (*read)(WeightTensors& tensors, const NamedTensor& codes);
};

/// Chooses by what is stored; nothing for plain floating point.
Result<std::optional<CodesToRead>> find_codes(const WeightTensors& tensors) {
  const QuantMethod method = tensors.format().method;
  const auto packed = tensors.optional(".weight_packed");
  if (!packed) return packed.error();
  if (*packed) return CodesToRead{**packed, (**packed).dtype == "U8" ? read_fp4 : read_packed};
  const auto qweight = tensors.optional(".qweight");
  if (!qweight) return qweight.error();
  if (*qweight) return CodesToRead{**qweight, method == QuantMethod::kAwq ? read_awq : read_gptq};
  const auto plain = tensors.optional(kWeightSuffix);
  if (!plain) return plain.error();
  if (!*plain) return std::nullopt;
  const std::string_view dtype = (**plain).dtype;
  if (dtype == "F8_E4M3" || dtype == "F8_E5M2") return CodesToRead{**plain, read_fp8};
  if (dtype == "U8") return CodesToRead{**plain, read_fp4};
  if (dtype == "I32" && method == QuantMethod::kQuark) return CodesToRead{**plain, read_quark};
  if (dtype == "I8" && (method == QuantMethod::kQuark || method == QuantMethod::kCompressedTensors))
    return CodesToRead{**plain, read_bytes};
  if (dtype == "I8" && method == QuantMethod::kInt8Blocks) return CodesToRead{**plain, read_int8_blocks};
  // Files of MIXED_PRECISION describe w4afp8 too.
  if (dtype == "I8" && (method == QuantMethod::kInt4Fp8 || method == QuantMethod::kModelOpt))
    return CodesToRead{**plain, read_int4_pairs};
  return std::nullopt;
}

Result<std::optional<StoredWeight>> read_weight(WeightTensors tensors) {
  const auto codes = find_codes(tensors);
  if (!codes) return codes.error();
  if (!*codes) return std::nullopt;
  RETURN_IF_ERROR((**codes).read(tensors, (**codes).tensor));
  if (tensors.has_values()) RETURN_IF_ERROR(check_stored(tensors.weight));
  return std::move(tensors.weight);
}

}  // namespace

Result<std::optional<StoredWeight>> find_stored_weight(const TensorLookup& lookup, const WeightFormat& format,
                                                       const std::string& weight_name, int64_t rows, int64_t cols) {
  if (!weight_name.ends_with(kWeightSuffix)) return std::nullopt;
  return read_weight({lookup, format, weight_name, rows, cols, true});
}

std::vector<std::string> names_read_for_format(const WeightFormat& format, std::string_view weight_name) {
  return format.has_groups_in_order ? std::vector<std::string>() : group_index_names(weight_name);
}

Result<std::optional<StoredFormat>> find_stored_format(const TensorLookup& lookup, const WeightFormat& format,
                                                       const std::string& weight_name, int64_t rows, int64_t cols) {
  if (!weight_name.ends_with(kWeightSuffix)) return std::nullopt;
  const auto found = read_weight({lookup, format, weight_name, rows, cols, false});
  if (!found) return found.error();
  if (!*found) return std::nullopt;
  return stored_format(**found);
}

}  // namespace millrace::weights
