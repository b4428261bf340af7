#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace millrace::test {

/// A golden family whose checkpoint is written as a GGUF file.
struct GgufConversion {
  std::string folder;        ///< in tests/golden
  std::string architecture;  ///< general.architecture
  /// Texts of config.json that files cannot say, with what stands there in place of them.
  std::vector<std::pair<std::string, std::string>> changes = {};
  /// Weights of the file are products with multipliers of config.json, which rounds otherwise.
  bool multiplies_weights = false;
  /// Layers of the file after the model's, which predict further tokens.
  int32_t predicting_layers = 0;
  bool quantizes_latents = false;  ///< expansions of latents are stored in Q8_0
};

/// Returns the families that have architectures of their own.
[[nodiscard]] const std::vector<GgufConversion>& gguf_conversions();

/// Returns the bytes of a GGUF file with the weights in `folder`, by the rules of the converters that publishers use:
/// their names of tensors, orders of rows, sums, stacks and keys. Matrices keep their bits.
[[nodiscard]] std::string convert_to_gguf(const GgufConversion& conversion, const std::filesystem::path& folder);

}  // namespace millrace::test
