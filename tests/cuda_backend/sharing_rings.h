#pragma once

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "cuda/cuda_backend.h"
#include "golden_test/feeding.h"

namespace millrace::test {

/// A golden family, with the beginnings of its first prompts.
struct SharedFamily {
  explicit SharedFamily(const std::string& name, size_t prompts = 2);
  /// Returns the logits of a ring that has all experts, one sequence after the other.
  [[nodiscard]] Logits wanted() const;

  std::unique_ptr<model::Checkpoint> checkpoint;
  model::ModelConfig config;
  Sequences sequences;
};

/// Returns the message of a failure, or "no failure".
[[nodiscard]] std::string failure_text(const std::exception_ptr& failure);

/// The rings of a golden model on one GPU, which share its experts. Each ring is a pipeline with backends of its own.
class SharingRings {
 public:
  struct Shape {
    int32_t ring_count = 2;
    int32_t rank_count = 1;
    int32_t stage_count = 1;
  };
  /// What became of each ring's run: the logits of its sequence, or why there are none.
  struct Outcome {
    Logits logits;                             // [rings]; empty for a ring without a sequence
    std::vector<std::exception_ptr> failures;  // [rings]
  };

  SharingRings(const model::Checkpoint& checkpoint, const model::ModelConfig& config, const Shape& shape);
  /// Joins the rings anew, as at the beginning of an epoch. Returns their exchange.
  std::shared_ptr<comm::SharedExperts> share();
  /// Computes sequence r on ring r, in chunks of `chunk` + r tokens, on all rings at once. Rings without rows step
  /// along.
  [[nodiscard]] Outcome run(const Sequences& sequences, size_t chunk);
  /// Returns what run() gives. Rethrows the first failure.
  [[nodiscard]] Logits logits(const Sequences& sequences, size_t chunk);
  [[nodiscard]] TestPipeline& ring(size_t number) { return *rings_[number]; }

 private:
  const Shape shape_;
  std::vector<std::unique_ptr<tensor::Backend>> backends_;  // ring after ring
  std::vector<std::unique_ptr<TestPipeline>> rings_;
};

}  // namespace millrace::test
