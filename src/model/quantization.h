#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "model/field_reader.h"
#include "tensor/w8.h"

/// How a model's projections are held and multiplied: as its checkpoint stores them, rounded to the compute dtype; in 8
/// bits (tensor/w8.h); in 8 bits with inputs of 8 bits; in 8 bits with scales that are powers of two. A checkpoint of 8
/// bits holds an I8 [out, in] under a projection's own name and its BF16 scales [out, groups] under the name with
/// "_scale" behind it; its config.json says so, and how scales were chosen, in quantization_config.
namespace millrace::model {

enum class Quantization : uint8_t { kNone, kW8, kW8A8, kMxInt8 };

[[nodiscard]] std::string_view to_string(Quantization quantization);
/// "none", "w8", "w8a8" or "mxint8".
[[nodiscard]] Result<Quantization> parse_quantization(std::string_view name);

/// How weights that are rounded for it get their scales.
[[nodiscard]] tensor::W8Scaling scaling_of(Quantization quantization);

/// Of a config.json: kNone without quantization_config, else kW8 or kMxInt8; any but our own is a fault that names it.
[[nodiscard]] Quantization read_quantization(FieldReader& fields);
/// The quantization_config that a checkpoint has whose weights were rounded for kW8 or kMxInt8.
[[nodiscard]] std::string quantization_config_json(Quantization quantization);
/// What a model is served with that is stored as `stored`. Errors: kInvalidArgument where other scales are wanted than
/// those that its weights have.
[[nodiscard]] Result<Quantization> choose_quantization(Quantization stored, Quantization wanted);
/// The scales of a projection by its name.
[[nodiscard]] std::string scale_name(std::string_view tensor_name);

}  // namespace millrace::model
