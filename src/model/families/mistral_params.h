#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "model/tensor_names.h"

/// Checkpoints in Mistral's own format, such as Mistral Large 3's: params.json in place of config.json, and weights in
/// consolidated*.safetensors.
namespace millrace::model {

inline constexpr std::string_view kMistralParamsName = "params.json";

/// Returns the config.json of Mistral4ForCausalLM that a params.json amounts to. Errors are kData and begin with
/// `source`: those of malformed text, and other models than those with latent attention and experts.
[[nodiscard]] Result<std::string> config_of_params(std::string_view json, std::string_view source);

/// Returns the names of tensors in this format.
[[nodiscard]] TensorNames mistral_names();

}  // namespace millrace::model
