#pragma once

#include <span>
#include <string_view>

namespace millrace::app {

/// Returns the texts on which `millrace quantize` compares a model with the one that it was quantized from: prose of
/// several languages, instructions, code, data and arithmetic, some hundred bytes each.
[[nodiscard]] std::span<const std::string_view> sample_prompts();

}  // namespace millrace::app
