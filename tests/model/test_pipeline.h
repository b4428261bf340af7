#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "model/checkpoint.h"
#include "model/config.h"
#include "model/stage_model.h"
#include "tensor/backend.h"

namespace millrace::test {

/// Some tokens of one sequence in a micro-batch.
struct Piece {
  std::vector<TokenId> tokens;
  int32_t prefix = 0;  ///< tokens of the sequence computed before
  size_t sequence = 0;
};

/// A whole model cut into stages in one process, on one backend. Hidden states travel from stage to stage through host
/// memory and fresh buffers, as over a wire. Used on one thread.
class TestPipeline {
 public:
  struct Options {
    int32_t stage_count = 1;
    int32_t page_size = 16;
    int32_t page_count = 64;
    model::StageLimits limits{.max_batch_tokens = 1024, .max_logit_rows = 37};
  };
  /// Loads the stages. Throws ErrorException when the checkpoint cannot be loaded.
  TestPipeline(const model::Checkpoint& checkpoint, const model::ModelConfig& config, tensor::Backend& backend,
               Options options);

  /// Gives the sequences of later runs their pages, with room for `tokens[s]` tokens each, in a scattered order that
  /// depends on `seed`. Earlier contents become stale.
  void start(const std::vector<int32_t>& tokens, uint32_t seed);

  using LogitsFn = std::function<void(size_t first_row, tensor::Matrix logits)>;
  /// Runs one micro-batch. Passes the logits of all rows, in order of the pieces, block by block on the backend's
  /// thread.
  void run(const std::vector<Piece>& pieces, const LogitsFn& block);
  /// Runs one micro-batch and returns f32 logits [rows, vocab].
  [[nodiscard]] std::vector<float> run(const std::vector<Piece>& pieces);

  [[nodiscard]] const model::StageModel& stage(size_t index) const { return *stages_[index]; }
  [[nodiscard]] tensor::Backend& backend() const { return backend_; }

 private:
  tensor::Backend& backend_;
  Options options_;
  std::vector<std::unique_ptr<model::StageModel>> stages_;
  std::vector<tensor::Buffer> hidden_;      // per stage
  std::vector<std::vector<PageId>> pages_;  // per sequence
};

}  // namespace millrace::test
