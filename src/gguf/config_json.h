#pragma once

#include <string>

#include "base/result.h"
#include "gguf/model.h"

namespace millrace::gguf {

/// Returns a config.json that says what the metadata and the tensors of a model say. Errors: kData for an unknown
/// family, a key that is missing or out of range, or one that changes the arithmetic in a way that is not computed
/// here. They name the file and the key.
[[nodiscard]] Result<std::string> config_json(const Model& model);

}  // namespace millrace::gguf
