#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "async/real_runtime.h"
#include "model/checkpoint.h"
#include "sched/model_runner.h"

namespace millrace::test {

/// A golden model over ModelRunners, one per backend, joined as the stages of one process are: each hands over what its
/// run returns. Prompts are computed whole, then all sequences take decode steps together.
class DecodeRig {
 public:
  struct Options {
    std::string family = "qwen2";
    int32_t page_size = 16;
    uint32_t host_page_count = 0;
    bool activations_to_host = false;
    size_t sequence_count = 3;
    size_t first_prompt = 11;   ///< tokens
    size_t prompt_growth = 23;  ///< tokens by which each prompt is longer than the one before
  };
  /// Everything that was drawn: [sequences, steps].
  using Drawn = std::vector<std::vector<tensor::SampleResult>>;
  static constexpr int32_t kPagesEach = 20;

  DecodeRig(std::vector<std::unique_ptr<tensor::Backend>> backends, const Options& options);

  /// Computes the prompts and draws one token each.
  void prefill();
  /// One token more for each sequence, or the first `count` of them. Throws what a run throws.
  void decode() { decode(drawn_.size()); }
  void decode(size_t count);
  [[nodiscard]] const Drawn& drawn() const { return drawn_; }
  /// Of the last stage.
  [[nodiscard]] tensor::DecodeSteps::Counts decode_steps() const { return runners_.back()->decode_steps()->counts(); }
  /// Copies the full device pages of all stages and sequences to the host tier and back to others, which are used from
  /// then on; the loads are awaited layer by layer by the next step alone. Calls `before_load` in between.
  void move_pages(const std::function<void()>& before_load = {});
  /// As a stage loop does at its end.
  void forget_loads() {
    for (const auto& runner : runners_) runner->forget_loads();
  }
  /// All pages of all stages, read through the host tier, which has kPagesEach · 2 for each sequence.
  [[nodiscard]] std::vector<std::byte> pages();

 private:
  void run(const std::vector<std::vector<TokenId>>& tokens);
  [[nodiscard]] sched::StageRunner::Result run_stage(size_t stage, const sched::StageBatch& batch,
                                                     std::span<const std::byte> input);

  const Options options_;
  std::unique_ptr<model::Checkpoint> checkpoint_;
  std::vector<std::unique_ptr<tensor::Backend>> backends_;
  async::IoThread thread_{"rig"};
  std::vector<std::unique_ptr<sched::ModelRunner>> runners_;
  std::vector<tensor::SamplingParams> sampling_;  // [sequences]
  std::vector<std::vector<PageId>> pages_;        // [sequences, pages of one]
  std::vector<std::vector<TokenId>> tokens_;      // [sequences, tokens in the cache]
  Drawn drawn_;
};

}  // namespace millrace::test
