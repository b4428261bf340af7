#pragma once

#include <filesystem>
#include <string_view>

#include "base/result.h"
#include "model/config.h"

namespace millrace::model {

/// Parses the text of a config.json of one of families(). Both spellings of rope (rope_theta + rope_scaling,
/// rope_parameters) and of dtype are read. Every error is kData and begins with `source`. Known features that are not
/// computed here (foreign quantization, MLP biases, other activations) are refused by name.
[[nodiscard]] Result<ModelConfig> parse_config(std::string_view json, std::string_view source = "config.json");
/// Reads `folder`/config.json, without it params.json in Mistral's own format, or what describes the GGUF file of that
/// path, and drops windows as long as the context. Errors: those of parse_config, read_file, config_of_params and
/// read_gguf_config.
[[nodiscard]] Result<ModelConfig> read_config(const std::filesystem::path& folder);

}  // namespace millrace::model
