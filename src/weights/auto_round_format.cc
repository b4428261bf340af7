#include <algorithm>
#include <array>

#include "weights/format_members.h"

namespace millrace::weights {
namespace {

constexpr int64_t kUnquantizedBits = 16;

/// Which other library's layout a checkpoint of AutoRound has.
struct Packing {
  QuantMethod method = QuantMethod::kGptq;
  bool keeps_zeros = false;  ///< of GPTQ: zero points are stored as they are
};

/// Returns what an absent packing_format means. The first versions name the layout in `backend`, later ones only
/// kernels.
std::string usual_packing(JsonObject config) {
  if (text_member(config, "quant_method", "") == "intel/auto-round") {
    const std::string backend = text_member(config, "backend", "auto");
    if (backend != "auto") return backend;
  }
  return text_member(config, "data_type", "int").starts_with("fp") ? "auto_round:fp8" : "auto_round:auto_gptq";
}

/// Reads packing_format, whose parts name the layout and kernels: "auto_round:auto_gptq:exllamav2".
Result<Packing> read_packing(JsonObject config) {
  const std::string stored = text_member(config, "packing_format", usual_packing(config));
  const auto has = [&stored](std::string_view part) { return stored.find(part) != std::string::npos; };
  if (has("llm_compressor") && !has("e5m3")) return Packing{.method = QuantMethod::kCompressedTensors};
  if (has("fp8")) return Packing{.method = QuantMethod::kFp8};
  if (has("awq")) return Packing{.method = QuantMethod::kAwq};
  if (has("gptqmodel")) return Packing{.keeps_zeros = true};
  if (has("gptq")) return Packing{};
  constexpr std::array<std::string_view, 4> kPlain = {"auto_round", "auto_round:exllamav2", "auto_round:tritonv2",
                                                      "auto_round:torch"};
  if (std::ranges::find(kPlain, stored) != kPlain.end()) return Packing{.keeps_zeros = true};
  return bad_config(
      "packing_format is '{}', wanted 'auto_round', or 'auto_round:' with auto_gptq, gptqmodel, auto_awq, "
      "llm_compressor or fp8_static",
      stored);
}

/// Integers have the shapes of MXFP4 and NVFP4, so that only their type distinguishes them.
Result<void> check_float(JsonObject scheme, std::string_view owner) {
  const auto bits = integer_member(scheme, "bits", 4);
  if (!bits) return bits.error();
  const std::string type = text_member(scheme, "data_type", "mx_fp");
  if (*bits >= kUnquantizedBits || type.starts_with("mx_fp") || type.starts_with("nv_fp")) return {};
  return bad_config("data_type of {} is '{}', wanted mx_fp or nv_fp with llm_compressor", owner, type);
}

/// Integers whose inputs are quantized too store their zero points in another way.
Result<void> check_integer(JsonObject scheme, std::string_view owner) {
  const std::string type = text_member(scheme, "data_type", "int");
  if (!type.starts_with("int"))
    return bad_config("data_type of {} is '{}', wanted 'int' with this packing_format", owner, type);
  const auto act_bits = integer_member(scheme, "act_bits", kUnquantizedBits);
  if (!act_bits) return act_bits.error();
  if (*act_bits <= 8) return bad_config("act_bits of {} is {}, wanted {}", owner, *act_bits, kUnquantizedBits);
  return {};
}

/// Adds the widths and groups of a scheme of codes: those of all modules, or of the module `owner`.
Result<void> add_scheme(JsonObject scheme, std::string_view owner, QuantMethod method, WeightFormat& format) {
  if (method == QuantMethod::kCompressedTensors) return check_float(scheme, owner);  // tensors tell the rest
  const auto bits = integer_member(scheme, "bits", format.bits > 0 ? format.bits : 4);
  if (!bits) return bits.error();
  const int64_t usual_size = format.group_sizes.empty() ? 128 : format.group_size;
  const auto size = integer_member(scheme, "group_size", usual_size);
  if (!size) return size.error();
  if (*bits >= kUnquantizedBits) return {};
  RETURN_IF_ERROR(check_integer(scheme, owner));
  constexpr std::array<int64_t, 4> kBits = {2, 3, 4, 8};
  const bool fits = method == QuantMethod::kAwq ? *bits == 4 : std::ranges::find(kBits, *bits) != kBits.end();
  if (!fits)
    return bad_config("bits of {} is {}, wanted {}", owner, *bits,
                      method == QuantMethod::kAwq ? "4 of AWQ" : "2, 3, 4 or 8");
  add_choice(format, *bits, *size);
  return {};
}

}  // namespace

Result<WeightFormat> parse_auto_round(JsonObject config) {
  for (const std::string_view name : {"rotation_config", "transform_config", "spinquant_config"}) {
    JsonObject members;
    const JsonValue value = config[name];
    if (value.is_missing() || value.is_null() || (value.get(members) && members.size() == 0)) continue;
    return bad_config("{} is {}, wanted none", name, to_short_json(value, 80));
  }
  const auto packing = read_packing(config);
  if (!packing) return packing.error();
  WeightFormat format{.method = packing->method,
                      .is_gptq_v2 = packing->keeps_zeros,
                      .has_groups_in_order = packing->method == QuantMethod::kGptq};
  if (packing->method == QuantMethod::kFp8) {
    JsonArray block;  // without it scales belong to rows or tensors
    if (config["group_size"].get(block) && block.size() == 2 &&
        (!block.at(0).get(format.block_rows) || !block.at(1).get(format.block_cols) || format.block_rows < 1 ||
         format.block_cols < 1))
      return bad_config("group_size is {}, wanted two positive sizes", to_short_json(config["group_size"], 40));
    return format;
  }
  const auto bits = integer_member(config, "bits", 4);
  if (!bits) return bits.error();
  const auto size = integer_member(config, "group_size", 128);
  if (!size) return size.error();
  RETURN_IF_ERROR(add_scheme(config, "all modules", packing->method, format));
  if (*bits < 2 || *bits > 8) return bad_config("bits is {}, wanted 2 to 8", *bits);
  format.bits = static_cast<int>(*bits);
  format.group_size = std::max<int64_t>(*size, 0);
  JsonObject exceptions;  // names or patterns of modules, with what differs there
  const bool excepts = config["extra_config"].get(exceptions) && exceptions.size() > 0;
  format.has_exceptions = excepts && packing->method != QuantMethod::kCompressedTensors;
  for (const JsonMember exception : exceptions) {
    JsonObject scheme;
    if (!exception.value.get(scheme)) continue;
    RETURN_IF_ERROR(add_scheme(scheme, "'" + std::string(exception.key) + "'", packing->method, format));
  }
  return format;
}

}  // namespace millrace::weights
