#include "weights/format_members.h"

namespace millrace::weights {
namespace {

/// Counts the kinds of weights that the schemes of a config name.
struct Kinds {
  bool fp8 = false;
  bool fp4 = false;
};

/// Reads how the weights of the modules `owner` are stored. A scheme may quantize other tensors only.
Result<void> read_scheme(JsonObject scheme, std::string_view owner, Kinds& kinds) {
  const JsonValue value = scheme["weight"];
  if (value.is_missing() || value.is_null()) return {};
  JsonObject weight;
  if (!value.get(weight))
    return bad_config("weight of {} is {}, wanted the object of one quantization", owner, to_short_json(value, 80));
  const std::string dtype = text_member(weight, "dtype", "");
  const std::string scheme_name = text_member(weight, "qscheme", "");
  if (dtype == "fp8_e4m3" && (scheme_name == "per_tensor" || scheme_name == "per_channel")) {
    const auto axis = integer_member(weight, "ch_axis", 0);
    if (!axis) return axis.error();
    if (scheme_name == "per_channel" && *axis != 0 && *axis != -2)
      return bad_config("ch_axis of the weight of {} is {}, wanted 0", owner, *axis);
    kinds.fp8 = true;
    return {};
  }
  const auto size = integer_member(weight, "group_size", 0);
  if (!size) return size.error();
  const std::string scales = text_member(weight, "scale_format", "");
  if (dtype == "fp4" && scheme_name == "per_group" && *size == kMxColumns && scales == "e8m0") {
    kinds.fp4 = true;
    return {};
  }
  return bad_config(
      "weight of {} is {} {} with group_size {} and scale_format '{}', wanted fp8_e4m3 per_tensor or per_channel, or "
      "fp4 per_group with group_size {} and scale_format 'e8m0'",
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
  JsonObject exported;
  if (config["export"].get(exported)) {
    const std::string stored = text_member(exported, "weight_format", "real_quantized");
    if (stored != "real_quantized") return bad_config("export.weight_format is '{}', wanted 'real_quantized'", stored);
  }
  RETURN_IF_ERROR(check_no_rotation(config["algo_config"]));
  Kinds kinds;
  JsonObject scheme;
  if (config["global_quant_config"].get(scheme)) RETURN_IF_ERROR(read_scheme(scheme, "global_quant_config", kinds));
  for (const std::string_view list : {"layer_quant_config", "layer_type_quant_config"}) {
    JsonObject schemes;
    if (!config[list].get(schemes)) continue;
    for (const JsonMember member : schemes) {
      if (member.value.get(scheme)) RETURN_IF_ERROR(read_scheme(scheme, fmt::format("{}.{}", list, member.key), kinds));
    }
  }
  if (!kinds.fp8 && !kinds.fp4) return bad_config("no weight of global_quant_config or layer_quant_config, wanted one");
  // With both kinds only the tensors tell which one they have.
  if (kinds.fp8 && kinds.fp4) return WeightFormat{.method = QuantMethod::kModelOpt};
  if (kinds.fp8) return WeightFormat{.method = QuantMethod::kFp8};
  return WeightFormat{.method = QuantMethod::kCompressedTensors, .bits = 4, .group_size = kMxColumns};
}

}  // namespace millrace::weights
