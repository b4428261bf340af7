#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// Names of the tensors that store a quantized weight "P.weight".
namespace millrace::weights {

inline constexpr std::string_view kWeightSuffix = ".weight";

/// Returns the names under which a quantized "P.weight" and what belongs to it may be stored: "P.weight_packed",
/// "P.weight_scale", …, all but "P.weight" itself.
[[nodiscard]] std::vector<std::string> companion_names(std::string_view weight_name);
/// Returns those of companion_names() that hold codes. Scales alone are no weight.
[[nodiscard]] std::vector<std::string> code_names(std::string_view weight_name);
/// Returns those of companion_names() on which the weight's values depend: not the scales of inputs.
[[nodiscard]] std::vector<std::string> value_names(std::string_view weight_name);
/// Returns those of companion_names() that hold the group of each column.
[[nodiscard]] std::vector<std::string> group_index_names(std::string_view weight_name);
/// Returns whether a tensor's name is one of companion_names(), and then the name of its weight.
[[nodiscard]] std::optional<std::string> weight_of_companion(std::string_view name);
/// Returns whether a tensor's name is that of scales of inputs. The module may have another name than the weight's.
[[nodiscard]] bool names_input_scale(std::string_view name);
/// Returns whether a tensor's name is that of codes or of their scales.
[[nodiscard]] bool names_codes(std::string_view name);

}  // namespace millrace::weights
