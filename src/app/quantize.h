#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "model/quantization.h"
#include "text/tokenizer/tokenizer.h"

namespace millrace::app {

/// The flags of `millrace quantize`.
struct QuantizeFlags {
  std::filesystem::path model_path;
  std::filesystem::path output;
  model::Quantization quantization = model::Quantization::kW8;  ///< one that is_storable()
  /// A text whose next tokens both models predict. Empty: sample_prompts(). kNoPrompts: outputs are not compared.
  std::string prompts;
  std::filesystem::path report;  ///< a file for the errors of all tensors as JSON; empty: none
};
inline constexpr std::string_view kNoPrompts = "none";

/// Cuts tokens of a text into prompts of at most `length` tokens, each of which begins with `start` where that is not
/// empty. Tokens after the first `max_tokens` are left out.
[[nodiscard]] std::vector<std::vector<TokenId>> cut_prompts(const std::vector<TokenId>& tokens,
                                                            const std::vector<TokenId>& start, size_t length,
                                                            size_t max_tokens);

/// Writes a quantized model and compares its outputs with the original's. Returns lines for stdout. Errors: those of
/// quantize_checkpoint and measure_output_error; kNotFound and kData for the files of prompts and of the tokenizer;
/// kInternal when the report cannot be written. A folder without tokenizer.json, and a model that only pools, are
/// quantized without the comparison, which the lines say.
[[nodiscard]] Result<std::string> quantize(const QuantizeFlags& flags);

}  // namespace millrace::app
