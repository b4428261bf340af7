#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "model/field_reader.h"

/// How a model's projections are held and multiplied: as its checkpoint stores them, rounded to the compute dtype; in 8
/// bits (tensor/w8.h); in 8 bits with inputs of 8 bits. A checkpoint of 8 bits holds an I8 [out, in] under a
/// projection's own name and its BF16 scales [out, groups] under the name with "_scale" behind it; its config.json says
/// so in quantization_config.
namespace millrace::model {

enum class Quantization : uint8_t { kNone, kW8, kW8A8 };

[[nodiscard]] std::string_view to_string(Quantization quantization);
/// "none", "w8" or "w8a8".
[[nodiscard]] Result<Quantization> parse_quantization(std::string_view name);

/// Of a config.json: kNone without quantization_config; any but our own is a fault that names it.
[[nodiscard]] Quantization read_quantization(FieldReader& fields);
/// The quantization_config that a checkpoint of 8 bits has.
[[nodiscard]] std::string quantization_config_json();
/// The scales of a projection by its name.
[[nodiscard]] std::string scale_name(std::string_view tensor_name);

}  // namespace millrace::model
