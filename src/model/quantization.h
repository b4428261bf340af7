#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/enum_names.h"
#include "model/field_reader.h"
#include "tensor/w8.h"
#include "weights/weight_format.h"

/// How a model's projections are stored and multiplied. They keep the checkpoint's dtype, rounded to the compute dtype,
/// or have 8 bits (tensor/w8.h) or 4 (tensor/code_matrix.h). The 8-bit formats differ in their scales and in whether
/// inputs are quantized too.
///
/// An 8-bit checkpoint holds an I8 [out, in] under the projection's name and its scales under the name plus "_scale".
/// Scales are BF16 [out, groups]; per channel they are [out, 1] and may be F16 or F32. quantization_config in
/// config.json says so: in a format of this project, which names the choice of scales, or per channel in that of
/// compressed-tensors, which vLLM and SGLang also read. A checkpoint of 4 bits is "pack-quantized" of
/// compressed-tensors; it is read as any stored format (weights/), which keeps its 4 bits.
namespace millrace::model {

/// The format of the projections: unquantized; 8-bit groups; these with 8-bit inputs; scales that are powers of two;
/// scales per channel with inputs scaled per token; 4 bits in groups, with inputs of 8 bits.
enum class Quantization : uint8_t { kNone, kW8, kW8A8, kMxInt8, kW8A8Int8, kW4 };

inline constexpr EnumName<Quantization> kQuantizationNames[] = {
    {Quantization::kNone, "none"},          {Quantization::kW8, "w8"},         {Quantization::kW8A8, "w8a8"},
    {Quantization::kW8A8Int8, "w8a8_int8"}, {Quantization::kMxInt8, "mxint8"}, {Quantization::kW4, "w4"},
};
constexpr std::span<const EnumName<Quantization>> enum_names(Quantization) {
  return kQuantizationNames;
}

/// The member of config.json that describes quantization. The older name is read when the newer one is absent.
inline constexpr std::string_view kQuantizationKey = "quantization_config";
inline constexpr std::string_view kLegacyQuantizationKey = "compression_config";

[[nodiscard]] std::string_view to_string(Quantization quantization);
/// Parses one of kQuantizationNames. Error: kInvalidArgument, which lists them all.
[[nodiscard]] Result<Quantization> parse_quantization(std::string_view name);

/// Returns how scales are chosen when weights are quantized to this format.
[[nodiscard]] tensor::W8Scaling w8_scaling_of(Quantization quantization);
/// Returns whether GEMMs of this format quantize their inputs.
[[nodiscard]] tensor::W8Activations activations_of(Quantization quantization);
/// Returns whether checkpoints can store this format. The other formats are ways to multiply a storable one.
[[nodiscard]] bool is_storable(Quantization quantization);

/// The quantization that a config.json states for its weights.
struct StoredQuantization {
  Quantization quantization = Quantization::kNone;  ///< storable, or kNone
  bool has_unquantized_projections = false;         ///< some projections were left out on purpose
  weights::WeightFormat format;                     ///< of weights that are decoded when they are loaded
};
/// Reads quantization_config; kNone without one. A format that is neither computed nor decoded is a fault that names
/// it.
[[nodiscard]] StoredQuantization read_quantization(FieldReader& fields);
/// Returns the quantization_config of a checkpoint quantized to a storable format. `ignored` are the unquantized linear
/// layers, which only the format of compressed-tensors lists.
[[nodiscard]] std::string quantization_config_json(Quantization quantization,
                                                   std::span<const std::string> ignored = {});
/// Returns the format for serving weights that are stored as `stored`. Error: kInvalidArgument when `wanted` needs
/// other scales than the stored ones.
[[nodiscard]] Result<Quantization> resolve_quantization(Quantization stored, Quantization wanted);
/// Returns the name of a projection's scales.
[[nodiscard]] std::string scale_name(std::string_view tensor_name);
/// Returns a name of a projection of packed 4-bit weights: `suffix` in place of ".weight".
[[nodiscard]] std::string packed_name(std::string_view tensor_name, std::string_view suffix);

}  // namespace millrace::model
