#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "comm/collective/shared_experts.h"
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

/// A whole model cut into stages in one process, on one backend or on one per rank. Hidden states travel from stage to
/// stage through host memory and fresh buffers, as over a wire. Used on one thread.
class TestPipeline {
 public:
  struct Options {
    int32_t stage_count = 1;  ///< fewer where fewer layers can begin one
    int32_t page_size = 16;
    int32_t page_count = 64;
    model::StageLimits limits{.max_batch_tokens = 1024, .max_logit_rows = 37};
    int32_t ring = 0;        ///< number among the rings that share experts
    int32_t ring_count = 1;  ///< above 1: share() comes before the first run
  };
  /// Loads the stages. Throws ErrorException when the checkpoint cannot be loaded.
  TestPipeline(const model::Checkpoint& checkpoint, const model::ModelConfig& config, tensor::Backend& backend,
               Options options)
      : TestPipeline(checkpoint, config, std::vector{&backend}, options) {}
  /// Loads the stages with one rank per backend, which exchange through shared memory. Those on a GPU use the device's
  /// own collective and launch on threads of their own (cuda::RankExchange::kCopies).
  TestPipeline(const model::Checkpoint& checkpoint, const model::ModelConfig& config,
               const std::vector<tensor::Backend*>& ranks, Options options);

  /// Joins an exchange of experts with other rings, whose runs are the same steps. Without ranks it may do so again.
  void share(const std::shared_ptr<comm::SharedExperts>& experts);
  /// Takes part in a step of the other rings. Rethrows what a rank throws.
  void step_without_rows();

  /// Gives the sequences of later runs their pages, with room for `tokens[s]` tokens each, in a scattered order that
  /// depends on `seed`. Earlier contents become stale.
  void start(const std::vector<int32_t>& tokens, uint32_t seed);

  using LogitsFn = std::function<void(size_t first_row, tensor::Matrix logits)>;
  /// Runs one micro-batch. Passes the logits of all rows, in order of the pieces, block by block on the thread of the
  /// first rank's backend. Rethrows what a rank throws.
  void run(const std::vector<Piece>& pieces, const LogitsFn& block);
  /// Runs one micro-batch and returns f32 logits [rows, vocab].
  [[nodiscard]] std::vector<float> run(const std::vector<Piece>& pieces);

  /// Returns the first rank of a stage.
  [[nodiscard]] const model::StageModel& stage(size_t index) const { return *stages_[index].ranks[0].model; }
  [[nodiscard]] const model::StageModel& rank(size_t stage, size_t index) const {
    return *stages_[stage].ranks[index].model;
  }
  [[nodiscard]] tensor::Backend& backend() const { return stage(0).backend(); }

 private:
  struct Rank {
    std::unique_ptr<model::StageModel> model;
    tensor::Buffer hidden;
  };
  struct Stage {
    std::vector<std::unique_ptr<tensor::Collective>> ends;           // by rank; of one rank none
    std::vector<std::unique_ptr<tensor::ExpertExchange>> exchanges;  // by rank, if rings share experts
    std::vector<Rank> ranks;
  };
  /// Calls work(rank) inside work submitted to each rank of a stage and waits for all.
  static void run_on_ranks(Stage& stage, const std::function<void(size_t)>& work);

  Options options_;
  std::vector<Stage> stages_;
  std::vector<std::vector<PageId>> pages_;  // per sequence
  uint64_t step_ = 0;                       // runs so far, also those without rows
};

/// Returns the logits f32 [tokens, vocab] of one prompt, which a folder's model computes on one rank per backend.
/// Throws what TestPipeline throws.
[[nodiscard]] std::vector<float> prompt_logits(const std::filesystem::path& folder, const model::ModelConfig& config,
                                               const std::vector<std::unique_ptr<tensor::Backend>>& ranks,
                                               int32_t stage_count, int32_t token_count);

}  // namespace millrace::test
