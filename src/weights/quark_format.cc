#include "weights/format_members.h"

namespace millrace::weights {
namespace {

/// Counts the kinds of weights that the schemes of a config name.
struct Kinds {
  bool fp8 = false;
  bool fp4 = false;
  bool nvfp4 = false;
  bool int8 = false;
  bool int4 = false;
  bool uint4 = false;
};

/// Returns whether a list of quantizations is that of NVFP4: the second one quantizes the scales of the first.
bool is_nvfp4(JsonArray list) {
  JsonObject codes;
  JsonObject scales;
  if (list.size() != 2 || !list.at(0).get(codes) || !list.at(1).get(scales)) return false;
  bool quantizes_scales = false;
  (void)scales["is_scale_quant"].get(quantizes_scales);
  int64_t size = 0;
  (void)codes["group_size"].get(size);
  return text_member(codes, "dtype", "") == "fp4" && text_member(codes, "qscheme", "") == "per_group" && size == 16 &&
         quantizes_scales && text_member(scales, "dtype", "") == "fp8_e4m3" &&
         text_member(scales, "qscheme", "") == "per_tensor";
}

/// Reads the blocks of FP8. A checkpoint has one size, since scales alone do not tell which they are.
Result<void> read_block(JsonObject weight, std::string_view owner, WeightFormat& format) {
  const JsonValue value = weight["block_size"];
  JsonArray block;
  int64_t rows = 0;
  int64_t cols = 0;
  if (!value.get(block) || block.size() != 2 || !block.at(0).get(rows) || !block.at(1).get(cols) || rows < 1 ||
      cols < 1)
    return bad_config("block_size of the weight of {} is {}, wanted two positive sizes", owner,
                      to_short_json(value, 40));
  if (format.block_rows > 0 && (format.block_rows != rows || format.block_cols != cols))
    return bad_config("block_size of the weight of {} is [{}, {}], wanted [{}, {}] as that of others", owner, rows,
                      cols, format.block_rows, format.block_cols);
  format.block_rows = rows;
  format.block_cols = cols;
  return {};
}

/// Refuses scales per column.
Result<void> check_rows(JsonObject weight, std::string_view owner) {
  const auto axis = integer_member(weight, "ch_axis", 0);
  if (!axis) return axis.error();
  if (*axis != 0 && *axis != -2) return bad_config("ch_axis of the weight of {} is {}, wanted 0", owner, *axis);
  return {};
}

/// Reads one quantization of FP8 or of integers of 8 bits; false for others.
Result<bool> read_bytes(JsonObject weight, std::string_view owner, Kinds& kinds, WeightFormat& format) {
  const std::string dtype = text_member(weight, "dtype", "");
  const std::string scheme = text_member(weight, "qscheme", "");
  if (dtype != "fp8_e4m3" && dtype != "int8") return false;
  const bool is_fp8 = dtype == "fp8_e4m3";
  if (scheme == "per_channel") {
    RETURN_IF_ERROR(check_rows(weight, owner));
  } else if (is_fp8 && scheme == "per_block") {
    RETURN_IF_ERROR(read_block(weight, owner, format));
  } else if (is_fp8 && scheme == "per_group") {
    const auto size = integer_member(weight, "group_size", 0);
    if (!size) return size.error();
    if (*size != kMxColumns || text_member(weight, "scale_format", "") != "e8m0") return false;
  } else if (scheme != "per_tensor") {
    return false;
  }
  (is_fp8 ? kinds.fp8 : kinds.int8) = true;
  return true;
}

/// Reads how the weights of the modules `owner` are stored. A scheme may quantize other tensors only. Groups of
/// integers enter `format`.
Result<void> read_scheme(JsonObject scheme, std::string_view owner, Kinds& kinds, WeightFormat& format) {
  const JsonValue value = scheme["weight"];
  if (value.is_missing() || value.is_null()) return {};
  JsonArray list;
  if (value.get(list) && is_nvfp4(list)) {
    kinds.nvfp4 = true;
    return {};
  }
  JsonObject weight;
  if (!value.get(weight))
    return bad_config("weight of {} is {}, wanted the object of one quantization, or NVFP4's list of two", owner,
                      to_short_json(value, 80));
  const auto has_bytes = read_bytes(weight, owner, kinds, format);
  if (!has_bytes) return has_bytes.error();
  if (*has_bytes) return {};
  const std::string dtype = text_member(weight, "dtype", "");
  const std::string scheme_name = text_member(weight, "qscheme", "");
  const auto size = integer_member(weight, "group_size", 0);
  if (!size) return size.error();
  const std::string scales = text_member(weight, "scale_format", "");
  if (dtype == "fp4" && scheme_name == "per_group" && *size == kMxColumns && scales == "e8m0") {
    kinds.fp4 = true;
    return {};
  }
  const bool has_rows = scheme_name == "per_channel";
  if ((dtype == "int4" || dtype == "uint4") && (has_rows || (scheme_name == "per_group" && *size > 0))) {
    if (has_rows) RETURN_IF_ERROR(check_rows(weight, owner));
    (dtype == "int4" ? kinds.int4 : kinds.uint4) = true;
    add_choice(format, 4, has_rows ? 0 : *size);
    return {};
  }
  return bad_config(
      "weight of {} is {} {} with group_size {} and scale_format '{}', wanted fp8_e4m3 or int8 per_tensor or "
      "per_channel, fp8_e4m3 per_block, int4 or uint4 per_channel or per_group, or fp4 or fp8_e4m3 per_group with "
      "group_size {} and scale_format 'e8m0'",
      owner, dtype, scheme_name, *size, scales, kMxColumns);
}

/// Rotations of inputs are not computed. Algorithms are one object or a list.
Result<void> check_no_rotation(JsonValue algorithms) {
  const auto is_rotation = [](JsonValue value) {
    JsonObject members;
    if (!value.get(members)) return false;
    const std::string name = text_member(members, "name", "");
    return name == "rotation" || name == "quarot";
  };
  bool rotates = is_rotation(algorithms);
  JsonArray list;
  if (algorithms.get(list)) {
    for (const JsonValue value : list) rotates = rotates || is_rotation(value);
  }
  if (!rotates) return {};
  return bad_config("algo_config is {}, wanted none that rotates inputs", to_short_json(algorithms, 80));
}

}  // namespace

Result<WeightFormat> parse_quark(JsonObject config) {
  WeightFormat format{.method = QuantMethod::kQuark};
  JsonObject exported;
  if (config["export"].get(exported)) {
    format.is_in_order = text_member(exported, "pack_method", "reorder") == "order";
    const std::string stored = text_member(exported, "weight_format", "real_quantized");
    if (stored != "real_quantized") return bad_config("export.weight_format is '{}', wanted 'real_quantized'", stored);
  }
  RETURN_IF_ERROR(check_no_rotation(config["algo_config"]));
  Kinds kinds;
  JsonObject scheme;
  if (config["global_quant_config"].get(scheme))
    RETURN_IF_ERROR(read_scheme(scheme, "global_quant_config", kinds, format));
  for (const std::string_view list : {"layer_quant_config", "layer_type_quant_config"}) {
    JsonObject schemes;
    if (!config[list].get(schemes)) continue;
    for (const JsonMember member : schemes) {
      if (member.value.get(scheme))
        RETURN_IF_ERROR(read_scheme(scheme, fmt::format("{}.{}", list, member.key), kinds, format));
    }
  }
  if (kinds.int4 && kinds.uint4) return bad_config("weights are int4 and uint4, wanted one of them");
  if (kinds.int4 || kinds.uint4) {
    format.bits = 4;
    format.group_size = format.group_sizes.front();
    format.has_exceptions = format.group_sizes.size() > 1;
    format.has_signed_codes = kinds.int4;
    format.has_wider = kinds.fp8 || kinds.int8;
    return format;
  }
  if (kinds.int8) {
    format.bits = 8;
    return format;
  }
  if (!kinds.fp8 && !kinds.fp4 && !kinds.nvfp4)
    return bad_config("no weight of global_quant_config or layer_quant_config, wanted one");
  // With several kinds only the tensors tell which one they have.
  format.method = QuantMethod::kCompressedTensors;
  if (kinds.nvfp4 || (kinds.fp8 && kinds.fp4)) {
    format.method = QuantMethod::kModelOpt;
  } else if (kinds.fp8) {
    format.method = QuantMethod::kFp8;
  } else {
    format.bits = 4;
    format.group_size = kMxColumns;
  }
  return format;
}

}  // namespace millrace::weights
