#pragma once

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "model/checkpoint.h"
#include "model/config.h"

namespace millrace::test {

/// The f32 results of another implementation for one prompt.
struct GoldenPrompt {
  std::vector<TokenId> ids;
  std::vector<int32_t> positions;  ///< of `ids`, whose logits are stored
  std::vector<float> logits;       // [positions, vocab]
  /// The small model's file has the following in place of `positions` and `logits`.
  std::vector<TokenId> top_ids;   ///< most probable after the last of `ids`
  std::vector<float> top_logits;  // [top_ids]
  std::vector<double> logprobs;   // [ids], nats; NaN for the first
  std::vector<TokenId> greedy;    ///< continuation, eos ignored
  std::vector<double> margins;    // [greedy], between the two best logits
  /// Returns the prompt and its continuation without the last token: the input that yields every greedy choice.
  [[nodiscard]] std::vector<TokenId> sequence() const;
};

struct GoldenTolerance {
  double f32_max = 0.0;
  double bf16_max = 0.0;
  double bf16_rms = 0.0;
  double bf16_kl = 0.0;
  double w8_factor = 1.0;  ///< what 8-bit weights bring in addition to their usual factor
};

struct GoldenFamily {
  std::string name;
  std::filesystem::path folder;  ///< of the checkpoint, or the GGUF file
  GoldenTolerance tolerance;
  std::vector<GoldenPrompt> prompts;
};

/// Returns tests/golden of the source tree.
[[nodiscard]] std::filesystem::path golden_dir();
/// Returns the families of the tiny models, and of the small one that ships if it is present.
[[nodiscard]] const std::vector<std::string>& golden_family_names();
/// Returns the families that a run tries: all, or as many of them, drawn at random, as repetitions() leaves.
[[nodiscard]] const std::vector<std::string>& drawn_family_names();
inline constexpr const char* kSmallModelName = "books-4m";
/// Returns the models in GGUF files.
[[nodiscard]] const std::vector<std::string>& golden_gguf_names();
/// Returns the folder of a family's checkpoint, or its GGUF file.
[[nodiscard]] std::filesystem::path golden_folder(const std::string& name);
/// Reads a family. Throws when its golden file is missing or malformed.
[[nodiscard]] GoldenFamily read_golden_family(const std::string& name);

/// Returns the config of a checkpoint, with what its tensors say of it.
[[nodiscard]] model::ModelConfig adapted_config(const model::Checkpoint& checkpoint);

/// The distance of logits from a reference, over any number of rows.
class LogitDistance {
 public:
  void add_row(std::span<const float> found, std::span<const float> wanted);
  [[nodiscard]] double max() const { return max_; }
  [[nodiscard]] double rms() const { return std::sqrt(squares_ / static_cast<double>(count_)); }
  /// Returns KL(wanted ‖ found) of the worst row, in nats.
  [[nodiscard]] double kl() const { return kl_; }

 private:
  double max_ = 0.0;
  double squares_ = 0.0;
  double kl_ = 0.0;
  uint64_t count_ = 0;
};

/// Returns log_softmax of a row in double precision.
[[nodiscard]] std::vector<double> log_softmax(std::span<const float> logits);

}  // namespace millrace::test
