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

/// Reads packing_format, whose parts name the layout and kernels: "auto_round:auto_gptq:exllamav2".
Result<Packing> read_packing(JsonObject config) {
  const std::string older = text_member(config, "backend", "auto_round:auto_gptq");
  const std::string usual = older == "auto" ? "auto_round:auto_gptq" : older;
  const std::string stored = text_member(config, "packing_format", usual);
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

/// Adds the widths and groups of a scheme of codes: those of all modules, or of the module `owner`.
Result<void> add_scheme(JsonObject scheme, std::string_view owner, QuantMethod method, WeightFormat& format) {
  const auto bits = integer_member(scheme, "bits", format.bits > 0 ? format.bits : 4);
  if (!bits) return bits.error();
  const int64_t usual_size = format.group_sizes.empty() ? 128 : format.group_size;
  const auto size = integer_member(scheme, "group_size", usual_size);
  if (!size) return size.error();
  const std::string type = text_member(scheme, "data_type", "int");
  if (*bits >= kUnquantizedBits) return {};
  if (!type.starts_with("int"))
    return bad_config("data_type of {} is '{}', wanted 'int' with this packing_format", owner, type);
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
  for (const std::string_view name : {"rotation_config", "transform_config"}) {
    JsonObject members;
    const JsonValue value = config[name];
    if (value.is_missing() || value.is_null() || (value.get(members) && members.size() == 0)) continue;
    return bad_config("{} is {}, wanted none", name, to_short_json(value, 80));
  }
  const auto packing = read_packing(config);
  if (!packing) return packing.error();
  WeightFormat format{.method = packing->method, .is_gptq_v2 = packing->keeps_zeros};
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
  const bool is_packed_float = packing->method == QuantMethod::kCompressedTensors;
  if (!is_packed_float) RETURN_IF_ERROR(add_scheme(config, "all modules", packing->method, format));
  if (*bits < 2 || *bits > 8) return bad_config("bits is {}, wanted 2 to 8", *bits);
  format.bits = static_cast<int>(*bits);
  format.group_size = std::max<int64_t>(*size, 0);
  if (is_packed_float) return format;  // tensors tell MXFP4, MXFP8 and NVFP4 apart
  JsonObject exceptions;               // names or patterns of modules, with what differs there
  format.has_exceptions = config["extra_config"].get(exceptions) && exceptions.size() > 0;
  for (const JsonMember exception : exceptions) {
    JsonObject scheme;
    if (!exception.value.get(scheme)) continue;
    RETURN_IF_ERROR(add_scheme(scheme, "'" + std::string(exception.key) + "'", packing->method, format));
  }
  return format;
}

}  // namespace millrace::weights
