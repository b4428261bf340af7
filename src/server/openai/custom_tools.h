#pragma once

#include <string>
#include <string_view>

#include "server/openai/field.h"

/// Custom tools, whose calls carry a text. The model is shown a function of one string, `input`.
namespace millrace::server::openai {

/// Reads the format of a custom tool into `tool`: a text, or one of a grammar, whose members may stand in a member
/// `grammar`. Adds the grammar to the description that the model is shown.
[[nodiscard]] FieldError read_custom_format(const std::string& path, JsonObject custom, Tool& tool,
                                            std::string& description);
/// Returns the schema of the function that stands for a custom tool.
[[nodiscard]] std::string_view custom_parameters();
/// Returns the arguments of a call of that function.
[[nodiscard]] std::string custom_arguments(std::string_view input);

}  // namespace millrace::server::openai
