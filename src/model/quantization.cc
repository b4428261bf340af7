#include "model/quantization.h"

#include <fmt/format.h>

#include "base/check.h"
#include "base/json.h"
#include "tensor/code_matrix.h"

namespace millrace::model {
namespace {

constexpr std::string_view kMethod = "millrace-w8";
constexpr std::string_view kChannelInt8 = "w8a8_int8";  // of SGLang
constexpr std::string_view kCompressedTensors = "compressed-tensors";
constexpr std::string_view kCompressedFormat = "int-quantized";
constexpr std::string_view kPackedFormat = "pack-quantized";
constexpr std::string_view kLinear = "Linear";
constexpr int32_t kBits = 8;
constexpr std::string_view kScalesKey = "scales";
constexpr std::string_view kPowersOfTwo = "powers_of_two";
constexpr std::string_view kOfLargest = "largest";  // when nothing is said

Quantization read_own(FieldReader& fields) {
  const int32_t bits = fields.integer("bits", 1, 64);
  const int32_t group_size = fields.integer("group_size", 1, 1 << 20);
  const std::string scales = fields.text_or(kScalesKey, std::string(kOfLargest));
  if (fields.error()) return Quantization::kNone;
  if (bits != kBits) fields.fail_with("bits is {}, wanted {}", bits, kBits);
  if (group_size != tensor::kW8Group) fields.fail_with("group_size is {}, wanted {}", group_size, tensor::kW8Group);
  if (!fields.flag_or("sym", true)) fields.fail("sym is false, wanted true");
  if (scales == kPowersOfTwo) return Quantization::kMxInt8;
  if (scales != kOfLargest) fields.fail_with("scales is '{}', wanted '{}' or '{}'", scales, kOfLargest, kPowersOfTwo);
  return Quantization::kW8;
}

/// Returns whether "weights" or "input_activations" of a compressed-tensors group are signed 8-bit integers without a
/// zero point, scaled by `strategy`.
bool has_scheme(JsonObject group, const char* key, std::string_view strategy, bool dynamic) {
  JsonObject scheme;
  if (!group[key].get(scheme)) return false;
  const auto says = [scheme](const char* name, auto usual) {
    auto value = usual;
    (void)scheme[name].get(value);
    return value;
  };
  return says("num_bits", int64_t{0}) == kBits && says("type", std::string_view("int")) == "int" &&
         says("strategy", std::string_view("tensor")) == strategy && says("symmetric", true) &&
         says("dynamic", false) == dynamic;
}

/// Returns whether a config of compressed-tensors has weights by channel and inputs by token, for all linear layers
/// that are not ignored.
bool has_channel_int8(JsonObject config) {
  JsonObject groups;
  JsonObject group;
  JsonArray targets;
  std::string_view target;
  if (!config["config_groups"].get(groups) || groups.size() != 1 || !(*groups.begin()).value.get(group)) return false;
  if (!group["targets"].get(targets) || targets.size() != 1 || !targets.at(0).get(target)) return false;
  return target == kLinear && has_scheme(group, "weights", "channel", false) &&
         has_scheme(group, "input_activations", "token", true);
}

void add_scheme(JsonWriter& json, std::string_view key, std::string_view strategy, bool dynamic) {
  json.key(key).begin_object().member("num_bits", kBits).member("type", "int").member("symmetric", true);
  json.member("strategy", strategy).member("dynamic", dynamic).end_object();
}

/// Adds the description of 4-bit weights whose inputs keep 16 bits.
void add_packed_scheme(JsonWriter& json) {
  json.key("weights").begin_object().member("num_bits", 4).member("type", "int").member("symmetric", true);
  json.member("strategy", "group").member("group_size", tensor::kCodeUnit).member("dynamic", false).end_object();
  json.key("input_activations").null();
}

void add_compressed_tensors(JsonWriter& json, bool has_4_bits, std::span<const std::string> ignored) {
  json.member("quant_method", kCompressedTensors).member("format", has_4_bits ? kPackedFormat : kCompressedFormat);
  json.member("quantization_status", "compressed").key("ignore").begin_array();
  for (const std::string& name : ignored) json.value(name);
  json.end_array();
  json.key("config_groups").begin_object().key("group_0").begin_object();
  json.key("targets").begin_array().value(kLinear).end_array();
  if (has_4_bits) {
    add_packed_scheme(json);
  } else {
    add_scheme(json, "weights", "channel", false);
    add_scheme(json, "input_activations", "token", true);
  }
  json.end_object().end_object();
}

}  // namespace

std::string_view to_string(Quantization quantization) {
  return enum_name(quantization);
}

Result<Quantization> parse_quantization(std::string_view name) {
  if (const auto quantization = parse_enum<Quantization>(name)) return *quantization;
  return make_error(ErrorCode::kInvalidArgument, "quantization '{}' is not one of {}", name,
                    joined_enum_names<Quantization>());
}

tensor::W8Scaling w8_scaling_of(Quantization quantization) {
  switch (quantization) {
    case Quantization::kMxInt8: return tensor::W8Scaling::kPerGroupPowerOfTwo;
    case Quantization::kW8A8Int8: return tensor::W8Scaling::kPerChannel;
    default: return tensor::W8Scaling::kPerGroup;
  }
}

tensor::W8Activations activations_of(Quantization quantization) {
  const bool rounds = quantization == Quantization::kW8A8 || quantization == Quantization::kW8A8Int8;
  return rounds ? tensor::W8Activations::kInt8 : tensor::W8Activations::kUnquantized;
}

bool is_storable(Quantization quantization) {
  return quantization != Quantization::kNone && quantization != Quantization::kW8A8;
}

StoredQuantization read_quantization(FieldReader& fields) {
  const std::string_view key = fields.has(kQuantizationKey) ? kQuantizationKey : kLegacyQuantizationKey;
  const auto object = fields.object(key);
  if (!object) return {};
  FieldReader own(fields.source() + ": " + std::string(key), *object);
  const std::string method = own.text_or("quant_method", own.text_or("method", "unknown"));
  // What is stored without scales stays so.
  if (method == kChannelInt8) return {Quantization::kW8A8Int8, true, {}};
  if (method == kMethod) {
    const StoredQuantization stored{.quantization = read_own(own)};
    fields.take_error_of(own);
    return stored;
  }
  auto format = weights::parse_weight_format(*object);
  if (!format) {
    fields.fail(format.error().message);
    return {};
  }
  const bool has_integers =
      method == kCompressedTensors && own.text_or("format", std::string(kCompressedFormat)) == kCompressedFormat;
  if (has_integers && has_channel_int8(*object)) return {Quantization::kW8A8Int8, !own.strings("ignore").empty(), {}};
  return {.format = *format};
}

std::string quantization_config_json(Quantization quantization, std::span<const std::string> ignored) {
  std::string text;
  JsonWriter json(text);
  json.begin_object();
  if (quantization == Quantization::kW8A8Int8 || quantization == Quantization::kW4) {
    add_compressed_tensors(json, quantization == Quantization::kW4, ignored);
  } else {
    json.member("quant_method", kMethod).member("bits", kBits).member("group_size", tensor::kW8Group);
    json.member("sym", true);
    if (quantization == Quantization::kMxInt8) json.member(kScalesKey, kPowersOfTwo);
  }
  json.end_object();
  return text;
}

Result<Quantization> resolve_quantization(Quantization stored, Quantization wanted) {
  if (wanted == Quantization::kNone) return stored;
  const bool is_other = (stored == Quantization::kW4) != (wanted == Quantization::kW4);
  if (stored != Quantization::kNone && (is_other || w8_scaling_of(stored) != w8_scaling_of(wanted))) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "--quantization {}: the model is stored as {}, whose scales differ; wanted a format with the same scales",
        to_string(wanted), to_string(stored));
  }
  return wanted;
}

std::string packed_name(std::string_view tensor_name, std::string_view suffix) {
  constexpr std::string_view kWeight = ".weight";
  CHECK(tensor_name.ends_with(kWeight), "{} is not a weight", tensor_name);
  return std::string(tensor_name.substr(0, tensor_name.size() - kWeight.size())) + std::string(suffix);
}

std::string scale_name(std::string_view tensor_name) {
  return std::string(tensor_name) + "_scale";
}

}  // namespace millrace::model
