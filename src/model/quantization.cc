#include "model/quantization.h"

#include "base/json.h"
#include "tensor/w8.h"

namespace millrace::model {
namespace {

constexpr std::string_view kMethod = "millrace-w8";
constexpr int32_t kBits = 8;

void read_own(FieldReader& fields) {
  const int32_t bits = fields.integer("bits", 1, 64);
  const int32_t group_size = fields.integer("group_size", 1, 1 << 20);
  if (fields.error()) return;
  if (bits != kBits) fields.fail_with("bits {}, wanted {}", bits, kBits);
  if (group_size != tensor::kW8Group) fields.fail_with("group_size {}, wanted {}", group_size, tensor::kW8Group);
  if (!fields.flag_or("sym", true)) fields.fail("sym false, wanted true");
}

}  // namespace

std::string_view to_string(Quantization quantization) {
  switch (quantization) {
    case Quantization::kNone: return "none";
    case Quantization::kW8: return "w8";
    case Quantization::kW8A8: return "w8a8";
  }
  return "unknown";
}

Result<Quantization> parse_quantization(std::string_view name) {
  for (const Quantization known : {Quantization::kNone, Quantization::kW8, Quantization::kW8A8})
    if (name == to_string(known)) return known;
  return make_error(ErrorCode::kInvalidArgument, "quantization '{}' is not one of none, w8, w8a8", name);
}

Quantization read_quantization(FieldReader& fields) {
  const auto object = fields.object("quantization_config");
  if (!object) return Quantization::kNone;
  FieldReader own(fields.place() + ": quantization_config", *object);
  const std::string method = own.text_or("quant_method", "unknown");
  if (method == kMethod) {
    read_own(own);
    fields.adopt(own);
    return Quantization::kW8;
  }
  fields.fail_with(
      "quantization_config (quant_method '{}') is not supported, wanted '{}' or weights in F32, BF16 or F16", method,
      kMethod);
  return Quantization::kNone;
}

std::string quantization_config_json() {
  std::string text;
  JsonWriter json(text);
  json.begin_object().member("quant_method", kMethod).member("bits", kBits);
  json.member("group_size", tensor::kW8Group).member("sym", true).end_object();
  return text;
}

std::string scale_name(std::string_view tensor_name) {
  return std::string(tensor_name) + "_scale";
}

}  // namespace millrace::model
