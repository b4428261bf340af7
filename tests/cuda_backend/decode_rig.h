#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "async/real_runtime.h"
#include "model/checkpoint.h"
#include "model/config.h"
#include "sched/stage/model_runner.h"

namespace millrace::test {

/// A model over ModelRunners, one per backend, joined like the stages of one process: each passes on what its
/// run returns. Prompts are computed whole, then all sequences take decode steps together.
class DecodeRig {
 public:
  struct Options {
    std::string family = "qwen2";              ///< golden model
    std::filesystem::path folder;              ///< of another model, or its GGUF file
    std::optional<model::ModelConfig> config;  ///< in place of that of the folder
    int32_t page_size = 16;
    uint32_t host_page_count = 0;
    bool activations_to_host = false;
    size_t sequence_count = 3;
    size_t first_prompt = 11;   ///< tokens
    size_t prompt_growth = 23;  ///< tokens by which each prompt exceeds the previous one
    int32_t max_batch_tokens = 2048;
    int32_t draft_rows = 0;  ///< rows for drafts, beyond those of the sequences
  };
  /// All sampled results, [sequences, steps].
  using Drawn = std::vector<std::vector<tensor::SampleResult>>;
  static constexpr int32_t kPagesEach = 20;

  DecodeRig(std::vector<std::unique_ptr<tensor::Backend>> backends, const Options& options);

  /// Computes the prompts and samples one token each.
  void prefill();
  /// Samples one more token for each sequence, or for the first `count` of them. Rethrows what a run throws.
  void decode() { decode(drawn_.size()); }
  void decode(size_t count);
  /// Runs a step of the first sequences, each with its drafts. Results after accepted drafts are kept. A model with
  /// states has accepted drafts again in the next step.
  void decode(const std::vector<std::vector<TokenId>>& drafts);
  /// Runs a step in which the first sequence computes `tokens` after its last token, the others one token each.
  void extend(const std::vector<TokenId>& tokens);
  [[nodiscard]] const Drawn& drawn() const { return drawn_; }
  /// Returns the counts of the last stage.
  [[nodiscard]] tensor::GraphStats::Counts graph_stats() const { return runners_.back()->graph_stats()->counts(); }
  /// Copies the full device pages of all stages and sequences to the host tier and back to other pages, which are used
  /// from then on. Only the next step waits for the loads, layer by layer. Calls `before_load` in between.
  void move_pages(const std::function<void()>& before_load = {});
  /// Drops the loads, like a stage loop at its end.
  void drop_loads() {
    for (const auto& runner : runners_) runner->drop_loads();
  }
  /// Returns all pages of all stages, read through the host tier, which has kPagesEach · 2 per sequence.
  [[nodiscard]] std::vector<std::byte> pages();

 private:
  [[nodiscard]] std::vector<cache::PageCopy> copies(const std::vector<PageId>& device,
                                                    const std::vector<HostPageId>& host) const;
  void store(sched::ModelRunner& runner, const std::vector<PageId>& device, const std::vector<HostPageId>& host);
  /// Returns the accepted drafts of each sequence whose states are not kept, and its newest token.
  [[nodiscard]] std::vector<std::vector<TokenId>> next_tokens() const;
  /// Runs the given tokens of each sequence, which follow its cached ones. The last `drafts[s]` of them are drafts.
  void run(const std::vector<std::vector<TokenId>>& tokens, const std::vector<size_t>& drafts);
  [[nodiscard]] sched::StageRunner::Result run_stage(size_t stage, const sched::StageBatch& batch,
                                                     std::span<const std::byte> input);

  const Options options_;
  std::unique_ptr<model::Checkpoint> checkpoint_;
  std::vector<std::unique_ptr<tensor::Backend>> backends_;
  async::IoThread thread_{"rig"};
  std::vector<std::unique_ptr<sched::ModelRunner>> runners_;
  uint32_t group_count_ = 1;
  bool has_states_ = false;
  std::vector<tensor::SamplingParams> sampling_;  // [sequences]
  std::vector<std::vector<PageId>> pages_;        // [sequences, pages of one]
  std::vector<std::vector<TokenId>> tokens_;      // [sequences, tokens in the cache]
  std::vector<std::vector<TokenId>> replayed_;    // [sequences, accepted drafts after these]
  Drawn drawn_;
};

/// Returns up to `most` drafts for each of the first `count` sequences, of which `drawn` are sampled. They are the
/// tokens sampled without drafts; some contain a wrong token.
[[nodiscard]] std::vector<std::vector<TokenId>> random_drafts(const DecodeRig::Drawn& without_drafts,
                                                              const DecodeRig::Drawn& drawn, size_t count, size_t most,
                                                              std::minstd_rand& random);

}  // namespace millrace::test
