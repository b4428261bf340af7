#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/enum_names.h"
#include "model/field_reader.h"
#include "tensor/w8.h"

/// How a model's projections are held and multiplied: as its checkpoint stores them, rounded to the compute dtype; in 8
/// bits (tensor/w8.h); in 8 bits with inputs of 8 bits; in 8 bits with scales that are powers of two; in 8 bits with
/// one scale per output channel, and inputs with one per token. A checkpoint of 8 bits holds an I8 [out, in] under a
/// projection's own name and its scales under the name with "_scale" behind it: BF16 [out, groups], or of the last kind
/// [out, 1], also F16 or F32. Its config.json says so in quantization_config: in a form of our own how scales were
/// chosen, or of the last kind in the form of compressed-tensors, which vLLM and SGLang read too.
namespace millrace::model {

enum class Quantization : uint8_t { kNone, kW8, kW8A8, kMxInt8, kW8A8Int8 };

inline constexpr EnumName<Quantization> kQuantizationNames[] = {
    {Quantization::kNone, "none"},          {Quantization::kW8, "w8"},         {Quantization::kW8A8, "w8a8"},
    {Quantization::kW8A8Int8, "w8a8_int8"}, {Quantization::kMxInt8, "mxint8"},
};
constexpr std::span<const EnumName<Quantization>> enum_names(Quantization) {
  return kQuantizationNames;
}

/// Where config.json says it; the older name is read where the newer one is missing.
inline constexpr std::string_view kQuantizationKey = "quantization_config";
inline constexpr std::string_view kLegacyQuantizationKey = "compression_config";

[[nodiscard]] std::string_view to_string(Quantization quantization);
/// Parses one of the names. Errors: kInvalidArgument, which names them all.
[[nodiscard]] Result<Quantization> parse_quantization(std::string_view name);

/// How weights that are rounded for it get their scales.
[[nodiscard]] tensor::W8Scaling w8_scaling_of(Quantization quantization);
/// Whether its products round their inputs.
[[nodiscard]] tensor::W8Activations activations_of(Quantization quantization);
/// Whether weights are stored so: the others are ways to multiply what is stored as one of these.
[[nodiscard]] bool is_storable(Quantization quantization);

/// What a config.json says of its weights.
struct StoredQuantization {
  Quantization quantization = Quantization::kNone;  ///< storable, or kNone
  bool has_unquantized_projections = false;         ///< some projections were left out on purpose
};
/// kNone without quantization_config; a form that is not served is a fault that names it.
[[nodiscard]] StoredQuantization read_quantization(FieldReader& fields);
/// The quantization_config of a checkpoint whose projections were rounded for a storable one. `ignored`: linear layers
/// that were not, which only the form of compressed-tensors names.
[[nodiscard]] std::string quantization_config_json(Quantization quantization,
                                                   std::span<const std::string> ignored = {});
/// What a model is served with that is stored as `stored`. Errors: kInvalidArgument where other scales are wanted than
/// those that its weights have.
[[nodiscard]] Result<Quantization> resolve_quantization(Quantization stored, Quantization wanted);
/// The scales of a projection by its name.
[[nodiscard]] std::string scale_name(std::string_view tensor_name);

}  // namespace millrace::model
