#pragma once

#include <filesystem>

#include "base/result.h"
#include "model/config.h"

namespace millrace::model {

/// Reads the config of a GGUF model from the config.json in the same folder, else from the metadata. A config.json
/// without architectures is no description and is passed over. Whether the head is tied, and how many rows the
/// embedding has, the tensors say. Errors: those of GgufFiles::open, gguf::config_json and parse_config; kData for a
/// config.json of a model of other sizes.
[[nodiscard]] Result<ModelConfig> read_gguf_config(const std::filesystem::path& path);

}  // namespace millrace::model
