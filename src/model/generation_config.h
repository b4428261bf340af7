#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

namespace millrace::model {

/// The defaults of generation_config.json for parameters that a request leaves out.
struct GenerationConfig {
  std::vector<TokenId> eos_token_ids;  ///< empty: use those of config.json
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<int32_t> top_k;  ///< 0: off
  std::optional<float> repetition_penalty;
};

/// Parses the text of a generation_config.json. Errors are kData and begin with `source`.
[[nodiscard]] Result<GenerationConfig> parse_generation_config(std::string_view json,
                                                               std::string_view source = "generation_config.json");
/// Replaces the fields that `json` names. Only fields of GenerationConfig are allowed. Errors are kInvalidArgument and
/// begin with `source`.
[[nodiscard]] Result<void> override_generation_config(GenerationConfig& config, std::string_view json,
                                                      std::string_view source);
/// Reads `folder`/generation_config.json, or that in the folder of a GGUF file. An absent file gives an empty config.
[[nodiscard]] Result<GenerationConfig> read_generation_config(const std::filesystem::path& folder);

}  // namespace millrace::model
