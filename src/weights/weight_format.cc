#include "weights/weight_format.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "weights/format_members.h"

namespace millrace::weights {

Result<int64_t> integer_member(JsonObject object, std::string_view name, int64_t usual) {
  const JsonValue value = object[name];
  if (value.is_missing() || value.is_null()) return usual;
  int64_t number = 0;
  if (!value.get(number)) return bad_config("{} is {}, wanted an integer", name, to_short_json(value, 40));
  return number;
}

std::string text_member(JsonObject object, std::string_view name, std::string_view usual) {
  std::string_view value = usual;
  (void)object[name].get(value);
  return std::string(value);
}

void add_choice(WeightFormat& format, int64_t bits, int64_t group_size) {
  const int64_t size = std::max<int64_t>(group_size, 0);
  format.widths |= 1u << bits;
  if (std::ranges::find(format.group_sizes, size) == format.group_sizes.end()) format.group_sizes.push_back(size);
}

namespace {

/// Reads weight_block_size, where there is one.
Result<WeightFormat> read_blocks(JsonObject config, WeightFormat format) {
  const JsonValue block = config["weight_block_size"];
  if (block.is_missing() || block.is_null()) return format;
  JsonArray sizes;
  if (!block.get(sizes) || sizes.size() != 2 || !sizes.at(0).get(format.block_rows) ||
      !sizes.at(1).get(format.block_cols) || format.block_rows < 1 || format.block_cols < 1)
    return bad_config("weight_block_size is {}, wanted two positive sizes", to_short_json(block, 40));
  return format;
}

Result<WeightFormat> parse_fp8(JsonObject config) {
  const std::string fmt = text_member(config, "fmt", "e4m3");
  if (fmt != "e4m3" && fmt != "float8_e4m3fn") return bad_config("fmt is '{}', wanted 'e4m3' or 'float8_e4m3fn'", fmt);
  return read_blocks(config, {.method = QuantMethod::kFp8});
}

/// Integers of 8 bits with a scale per block.
Result<WeightFormat> parse_int8_blocks(JsonObject config) {
  auto format = read_blocks(config, {.method = QuantMethod::kInt8Blocks, .bits = 8});
  if (format && format->block_rows == 0) return bad_config("weight_block_size is missing, wanted two positive sizes");
  return format;
}

/// Experts in integers of 4 bits, and other weights in FP8 with a scale per block. Scales of inputs have no use.
Result<WeightFormat> parse_int4_fp8(JsonObject config) {
  auto format = read_blocks(config, {.method = QuantMethod::kInt4Fp8, .bits = 4});
  if (!format) return format;
  const auto group_size = integer_member(config, "group_size", kInt4Columns);
  if (!group_size) return group_size.error();
  if (*group_size < 1) return bad_config("group_size is {}, wanted a positive size", *group_size);
  format->group_size = *group_size;
  return format;
}

/// MXFP8: a scale of 8 bits, a power of two, for 32 columns of a row.
Result<WeightFormat> parse_mxfp8(JsonObject config) {
  auto format = parse_fp8(config);
  if (!format) return format;
  if (format->block_rows == 0) {
    format->block_rows = 1;
    format->block_cols = kMxColumns;
  }
  if (format->block_rows != 1 || format->block_cols != kMxColumns)
    return bad_config("weight_block_size is [{}, {}], wanted [1, {}] of MXFP8", format->block_rows, format->block_cols,
                      kMxColumns);
  return format;
}

Result<WeightFormat> parse_gptq(JsonObject config) {
  WeightFormat format{.method = QuantMethod::kGptq};
  const auto bits = integer_member(config, "bits", 4);
  if (!bits) return bits.error();
  const auto group_size = integer_member(config, "group_size", -1);
  if (!group_size) return group_size.error();
  constexpr std::array<int64_t, 4> kBits = {2, 3, 4, 8};
  if (std::ranges::find(kBits, *bits) == kBits.end()) return bad_config("bits is {}, wanted 2, 3, 4 or 8", *bits);
  format.bits = static_cast<int>(*bits);
  format.group_size = std::max<int64_t>(*group_size, 0);
  const std::string stored = text_member(config, "checkpoint_format", text_member(config, "format", "gptq"));
  if (stored != "gptq" && stored != "gptq_v2")
    return bad_config("checkpoint_format is '{}', wanted 'gptq' or 'gptq_v2'", stored);
  format.is_gptq_v2 = stored == "gptq_v2";
  const auto keeps_order = [](JsonObject object) {
    bool orders = false;
    return object["desc_act"].get(orders) && !orders;
  };
  format.has_groups_in_order = keeps_order(config);
  (void)config["sym"].get(format.is_symmetric);
  JsonObject rules;  // patterns of modules, with what differs there
  format.has_exceptions = config["dynamic"].get(rules) && rules.size() > 0;
  add_choice(format, *bits, *group_size);
  for (const JsonMember rule : rules) {
    JsonObject members;
    if (!rule.value.get(members)) continue;
    const auto other = integer_member(members, "bits", *bits);
    if (!other) return other.error();
    if (std::ranges::find(kBits, *other) == kBits.end())
      return bad_config("dynamic: bits of '{}' is {}, wanted 2, 3, 4 or 8", rule.key, *other);
    const auto size = integer_member(members, "group_size", *group_size);
    if (!size) return size.error();
    add_choice(format, *other, *size);
    const bool says_order = !members["desc_act"].is_missing();
    format.has_groups_in_order = format.has_groups_in_order && (!says_order || keeps_order(members));
  }
  return format;
}

/// Returns the version of a name, which libraries write in small or capital letters.
std::optional<AwqVersion> awq_version(std::string_view name) {
  if (name == "gemm" || name == "GEMM") return AwqVersion::kGemm;
  if (name == "gemv" || name == "GEMV") return AwqVersion::kGemv;
  if (name == "gemv_fast" || name == "GEMV_FAST") return AwqVersion::kGemvFast;
  return std::nullopt;
}

Result<WeightFormat> parse_awq(JsonObject config) {
  WeightFormat format{.method = QuantMethod::kAwq};
  const bool has_short_names = !config["w_bit"].is_missing();  // of AutoAWQ's own file
  const auto bits = integer_member(config, has_short_names ? "w_bit" : "bits", 4);
  if (!bits) return bits.error();
  const auto group_size = integer_member(config, has_short_names ? "q_group_size" : "group_size", 128);
  if (!group_size) return group_size.error();
  if (*bits != 4) return bad_config("bits is {}, wanted 4", *bits);
  // GPTQModel names the version as it names formats of GPTQ.
  const std::string version =
      text_member(config, "version", text_member(config, "checkpoint_format", text_member(config, "format", "gemm")));
  const auto known = awq_version(version);
  if (!known) return bad_config("version is '{}', wanted 'gemm', 'gemv' or 'gemv_fast'", version);
  const bool has_gemv_groups = *group_size == 32 || *group_size == 64 || (*group_size > 0 && *group_size % 128 == 0);
  if (*known != AwqVersion::kGemm && !has_gemv_groups)
    return bad_config("group_size is {}, wanted 32, 64 or a multiple of 128 with version '{}'", *group_size, version);
  format.bits = 4;
  format.group_size = std::max<int64_t>(*group_size, 0);
  format.awq_version = *known;
  return format;
}

/// Reads the weights' part of one group of compressed-tensors into `format`, which other groups may have filled.
Result<void> read_group(std::string_view name, JsonValue group, WeightFormat& format, bool& has_integers) {
  JsonObject members;
  JsonObject scheme;
  if (!group.get(members)) return bad_config("config_groups.{} is no object", name);
  const JsonValue weights = members["weights"];
  if (weights.is_missing() || weights.is_null()) return {};  // a group of attention, or of a KV cache alone
  if (!weights.get(scheme))
    return bad_config("config_groups.{}.weights is {}, wanted an object", name, to_short_json(weights, 40));
  const auto bits = integer_member(scheme, "num_bits", 8);
  if (!bits) return bits.error();
  if (*bits < 2 || *bits > 8) return bad_config("config_groups.{}: num_bits is {}, wanted 2 to 8", name, *bits);
  const auto group_size = integer_member(scheme, "group_size", 0);
  if (!group_size) return group_size.error();
  const bool is_integer = text_member(scheme, "type", "int") == "int";
  const int64_t columns = std::max<int64_t>(*group_size, 0);
  if (is_integer && has_integers && (format.bits != *bits || format.group_size != columns))
    format.has_exceptions = true;
  if (!has_integers) {
    format.bits = static_cast<int>(*bits);
    format.group_size = columns;
  }
  has_integers = has_integers || is_integer;
  if (is_integer) add_choice(format, *bits, *group_size);
  JsonArray block;
  if (scheme["block_structure"].get(block) && block.size() == 2) {
    if (!block.at(0).get(format.block_rows) || !block.at(1).get(format.block_cols) || format.block_rows < 1 ||
        format.block_cols < 1)
      return bad_config("config_groups.{}: block_structure is {}, wanted two positive sizes", name,
                        to_short_json(scheme["block_structure"], 40));
  }
  return {};
}

/// Transforms rotate inputs before a product, which nothing here computes.
Result<void> check_no_transforms(JsonObject config) {
  const JsonValue value = config["transform_config"];
  JsonObject members;
  if (value.is_missing() || value.is_null() || (value.get(members) && members.size() == 0)) return {};
  return bad_config("transform_config is {}, wanted none", to_short_json(value, 80));
}

/// Sparse weights are stored as bitmaps and the values that are not zero.
Result<void> check_dense(JsonObject config) {
  JsonObject members;
  if (!config["sparsity_config"].get(members)) return {};
  const std::string stored = text_member(members, "format", "dense");
  if (stored == "dense") return {};
  return bad_config("sparsity_config: format is '{}', wanted 'dense'", stored);
}

Result<WeightFormat> parse_compressed_tensors(JsonObject config) {
  constexpr std::array<std::string_view, 9> kFormats = {
      "int-quantized",        "float-quantized", "naive-quantized", "pack-quantized", "nvfp4-pack-quantized",
      "mxfp4-pack-quantized", "mxfp8-quantized", "mixed-precision", "dense"};
  RETURN_IF_ERROR(check_dense(config));
  const std::string stored = text_member(config, "format", "int-quantized");
  if (std::ranges::find(kFormats, stored) == kFormats.end())
    return bad_config("format is '{}', wanted one of {}", stored, fmt::join(kFormats, ", "));
  WeightFormat format{.method = QuantMethod::kCompressedTensors};
  RETURN_IF_ERROR(check_no_transforms(config));
  JsonObject groups;
  const bool has_groups = config["config_groups"].get(groups) && groups.size() > 0;
  if (!has_groups && stored != "dense") return bad_config("config_groups is missing, wanted an object of groups");
  bool has_integers = false;
  for (const JsonMember member : groups) {
    const auto read = read_group(member.key, member.value, format, has_integers);
    if (!read) return read.error();
  }
  if (stored != "int-quantized") return format;
  if (has_groups && !has_integers) return bad_config("config_groups has no weights of type 'int' with '{}'", stored);
  if (has_integers) format.bits = 8;  // integers of fewer bits are stored as bytes
  return format;
}

/// Which format a tensor has follows from what is stored, but others than these would be taken for one of them.
Result<WeightFormat> parse_modelopt(JsonObject config) {
  JsonObject nested;  // of hf_quant_config.json
  const bool is_nested = config["quantization"].get(nested);
  const std::string algorithm =
      text_member(config, "quant_algo", is_nested ? text_member(nested, "quant_algo", "") : "");
  const bool is_known = algorithm.empty() || algorithm.starts_with("FP8") || algorithm == "MXFP8" ||
                        algorithm.starts_with("NVFP4") || algorithm == "W4A16_NVFP4" || algorithm == "MIXED_PRECISION";
  if (!is_known)
    return bad_config("quant_algo is '{}', wanted FP8, MXFP8, NVFP4, W4A16_NVFP4 or MIXED_PRECISION", algorithm);
  return WeightFormat{.method = QuantMethod::kModelOpt};
}

Result<WeightFormat> parse_of_method(JsonObject config, std::string_view usual_method) {
  // ModelOpt's own files name an algorithm alone.
  const bool has_algorithm = usual_method.empty() && !config["quant_algo"].is_missing();
  // GPTQModel calls it `method`.
  const std::string method =
      text_member(config, "quant_method", text_member(config, "method", has_algorithm ? "modelopt" : usual_method));
  if (method == "fp8" || method == "fbgemm_fp8") return parse_fp8(config);
  if (method == "mxfp8") return parse_mxfp8(config);
  if (method == "compressed-tensors") return parse_compressed_tensors(config);
  if (method == "gptq") return parse_gptq(config);
  if (method == "awq") return parse_awq(config);
  if (method == "modelopt") return parse_modelopt(config);
  if (method == "mxfp4") return WeightFormat{.method = QuantMethod::kMxfp4};
  if (method == "auto-round" || method == "intel/auto-round") return parse_auto_round(config);
  if (method == "quark") return parse_quark(config);
  if (method == "blockwise_int8") return parse_int8_blocks(config);
  if (method == "w4afp8") return parse_int4_fp8(config);
  return bad_config(
      "quant_method is '{}', wanted fp8, fbgemm_fp8, mxfp8, compressed-tensors, gptq, awq, modelopt, mxfp4, "
      "auto-round, quark, blockwise_int8, w4afp8, w8a8_int8 or millrace-w8",
      method);
}

}  // namespace

Result<WeightFormat> parse_weight_format(JsonObject config, std::string_view usual_method) {
  constexpr int64_t kMaxSize = int64_t{1} << 31;  // readers add sizes to extents of matrices
  auto format = parse_of_method(config, usual_method);
  if (!format) return format;
  int64_t largest = std::max({format->group_size, format->block_rows, format->block_cols});
  for (const int64_t size : format->group_sizes) largest = std::max(largest, size);
  if (largest > kMaxSize) return bad_config("the size of a group or block is {}, wanted at most {}", largest, kMaxSize);
  return format;
}

}  // namespace millrace::weights
