#include "model/quantization.h"

#include "base/json.h"

namespace millrace::model {
namespace {

constexpr std::string_view kMethod = "millrace-w8";
constexpr int32_t kBits = 8;
constexpr std::string_view kScalesKey = "scales";
constexpr std::string_view kPowersOfTwo = "powers_of_two";
constexpr std::string_view kOfLargest = "largest";  // when nothing is said

Quantization read_own(FieldReader& fields) {
  const int32_t bits = fields.integer("bits", 1, 64);
  const int32_t group_size = fields.integer("group_size", 1, 1 << 20);
  const std::string scales = fields.text_or(kScalesKey, std::string(kOfLargest));
  if (fields.error()) return Quantization::kNone;
  if (bits != kBits) fields.fail_with("bits {}, wanted {}", bits, kBits);
  if (group_size != tensor::kW8Group) fields.fail_with("group_size {}, wanted {}", group_size, tensor::kW8Group);
  if (!fields.flag_or("sym", true)) fields.fail("sym false, wanted true");
  if (scales == kPowersOfTwo) return Quantization::kMxInt8;
  if (scales != kOfLargest) fields.fail_with("scales '{}', wanted '{}' or '{}'", scales, kOfLargest, kPowersOfTwo);
  return Quantization::kW8;
}

}  // namespace

std::string_view to_string(Quantization quantization) {
  switch (quantization) {
    case Quantization::kNone: return "none";
    case Quantization::kW8: return "w8";
    case Quantization::kW8A8: return "w8a8";
    case Quantization::kMxInt8: return "mxint8";
  }
  return "unknown";
}

Result<Quantization> parse_quantization(std::string_view name) {
  for (const Quantization known : {Quantization::kNone, Quantization::kW8, Quantization::kW8A8, Quantization::kMxInt8})
    if (name == to_string(known)) return known;
  return make_error(ErrorCode::kInvalidArgument, "quantization '{}' is not one of none, w8, w8a8, mxint8", name);
}

tensor::W8Scaling scaling_of(Quantization quantization) {
  return quantization == Quantization::kMxInt8 ? tensor::W8Scaling::kPowerOfTwo : tensor::W8Scaling::kLargest;
}

Quantization read_quantization(FieldReader& fields) {
  const auto object = fields.object("quantization_config");
  if (!object) return Quantization::kNone;
  FieldReader own(fields.place() + ": quantization_config", *object);
  const std::string method = own.text_or("quant_method", "unknown");
  if (method == kMethod) {
    const Quantization stored = read_own(own);
    fields.adopt(own);
    return stored;
  }
  fields.fail_with(
      "quantization_config (quant_method '{}') is not supported, wanted '{}' or weights in F32, BF16 or F16", method,
      kMethod);
  return Quantization::kNone;
}

std::string quantization_config_json(Quantization quantization) {
  std::string text;
  JsonWriter json(text);
  json.begin_object().member("quant_method", kMethod).member("bits", kBits);
  json.member("group_size", tensor::kW8Group).member("sym", true);
  if (scaling_of(quantization) == tensor::W8Scaling::kPowerOfTwo) json.member(kScalesKey, kPowersOfTwo);
  json.end_object();
  return text;
}

Result<Quantization> choose_quantization(Quantization stored, Quantization wanted) {
  if (wanted == Quantization::kNone) return stored;
  if (stored != Quantization::kNone && scaling_of(stored) != scaling_of(wanted)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--quantization {}: the model's weights are stored as {}, whose scales are other ones",
                      to_string(wanted), to_string(stored));
  }
  return wanted;
}

std::string scale_name(std::string_view tensor_name) {
  return std::string(tensor_name) + "_scale";
}

}  // namespace millrace::model
