#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "tensor/backend.h"

namespace millrace::model {

/// The distance of a model's next-token distributions from those of the model that it was quantized from, over every
/// position of some prompts.
struct OutputError {
  size_t positions = 0;  ///< compared distributions
  double mean_kl = 0.0;  ///< Kullback-Leibler divergence KL(original ‖ quantized) in nats; NaN if a logit is not finite
  double max_kl = 0.0;   ///< the largest one
  size_t max_prompt = 0;  ///< where max_kl is: the prompt, and the position in it
  size_t max_position = 0;
  size_t agreeing = 0;  ///< positions with the same most probable token
};

/// Adds the distributions of one position, of logits over the same vocabulary.
class OutputErrorSum {
 public:
  void add(std::span<const float> original, std::span<const float> quantized, size_t prompt, size_t position);
  [[nodiscard]] OutputError total() const;

 private:
  OutputError error_;
  double kl_sum_ = 0.0;
  std::vector<double> original_;  // [vocab], log-probabilities
  std::vector<double> quantized_;
};

/// Computes both models layer by layer over the prompts, each of which sees itself alone, and compares the outputs.
/// Memory: one layer of one model at a time, then the last layer and the head of both; hidden states of all prompts
/// twice; the keys and values of the longest prompt for one layer.
///
/// Prompts are not empty, and not longer than the context. Models that only pool have no outputs to compare. Errors:
/// those of read_config, Checkpoint and StageModel::load; kInvalidArgument for models of other sizes or without an
/// output head, and for a token outside of the vocabulary.
[[nodiscard]] Result<OutputError> measure_output_error(const std::filesystem::path& original,
                                                       const std::filesystem::path& quantized,
                                                       const std::vector<std::vector<TokenId>>& prompts,
                                                       tensor::Backend& backend);

}  // namespace millrace::model
