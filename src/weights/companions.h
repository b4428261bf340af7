#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// Names of the tensors that store a quantized weight "P.weight", or the weights of all experts in one tensor "P": what
/// is "P.weight_scale" of the former is "P_scale" of the latter.
namespace millrace::weights {

inline constexpr std::string_view kWeightSuffix = ".weight";

/// Returns the names under which a quantized "P.weight" and what belongs to it may be stored: "P.weight_packed",
/// "P.weight_scale", …, all but "P.weight" itself. Of another name "P" these are "P_packed", "P_scale", …; a
/// bias has none.
[[nodiscard]] std::vector<std::string> companion_names(std::string_view weight_name);
/// Returns those of companion_names() that hold codes. Scales alone are no weight.
[[nodiscard]] std::vector<std::string> code_names(std::string_view weight_name);
/// Returns those of companion_names() on which the weight's values depend: not the scales of inputs.
[[nodiscard]] std::vector<std::string> value_names(std::string_view weight_name);
/// Returns those of companion_names() that hold the group of each column.
[[nodiscard]] std::vector<std::string> group_index_names(std::string_view weight_name);
/// Returns whether a tensor's name is one of companion_names() of "P.weight", and then that name.
[[nodiscard]] std::optional<std::string> weight_of_companion(std::string_view name);
/// Returns whether a tensor's name is that of scales of inputs. The module may have another name than the weight's.
[[nodiscard]] bool names_input_scale(std::string_view name);
/// Returns the name by which the experts in one tensor "P" have what is `name`, of "P.weight", of a weight alone.
[[nodiscard]] std::string name_in_one_tensor(std::string_view name);
/// Returns whether a tensor's name is that of codes or of their scales.
[[nodiscard]] bool names_codes(std::string_view name);

}  // namespace millrace::weights
