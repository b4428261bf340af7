#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "sched/scheduler/chunking.h"
#include "sched/scheduler/cost_model.h"

namespace millrace::sched {

/// What a Chunker is built with.
struct ChunkingOptions {
  Chunking mode = Chunking::kFixed;
  uint32_t size = 0;  ///< largest number of prompt tokens in a micro-batch: --chunked-prefill-size
  double smoothing =
      0.75;  ///< how far a chunk moves from the last one's size or target to the computed one; 1: entirely
  uint32_t page_size = 64;  ///< chunks are multiples of max(page_size, 64); small balanced ones of a part of it
  uint32_t stage_count = 1;
  /// Stages that compute at full speed at the same time; finite only if all share one machine's processors.
  double parallel_stages = std::numeric_limits<double>::infinity();
  /// False: a prompt is one chunk, which waits for a micro-batch that has room. Only with kFixed.
  bool cuts_prompts = true;
};

/// Returns the prompt tokens of the largest micro-batch: `size`, or more for the published algorithm's profile.
[[nodiscard]] uint32_t max_prompt_tokens(Chunking mode, uint32_t size);

/// The time of a prompt of l tokens: f(l) = a·l² + b·l + c.
struct QuadraticFit {
  double a = 0;
  double b = 0;
  double c = 0;

  /// Returns the least-squares fit of (length, time) pairs, or nothing if they determine no increasing curve.
  [[nodiscard]] static std::optional<QuadraticFit> fit(const std::vector<std::pair<double, double>>& samples);
  /// Returns x with f(prefix + x) − f(prefix) = f(first) − f(0).
  [[nodiscard]] double chunk_for(double prefix, double first) const;
};

/// Decides how many prompt tokens go into a micro-batch. Owned by Scheduler, on its thread; PrefillPlanner cuts chunks
/// with it and CostTracker feeds its cost model. docs/scheduling.md has the rules.
class Chunker {
 public:
  explicit Chunker(const ChunkingOptions& options);

  /// Updates the cost model with a stage's time for a micro-batch.
  void observe(StageId stage, const BatchShape& shape, double run_us);
  /// Updates the cost model with a timing of the startup profile.
  void calibrate(StageId stage, const BatchShape& shape, double run_us);
  /// Takes the timings so far as the prior of the costs.
  void finish_profile();
  [[nodiscard]] const CostModel& costs() const { return costs_; }
  [[nodiscard]] const ChunkingOptions& options() const { return options_; }

  /// What is known of a prompt when its next chunk is cut.
  struct Prompt {
    uint32_t prefix = 0;        ///< tokens that are cached or in earlier chunks
    uint32_t left = 0;          ///< tokens after the prefix, at least 1
    double last_target_us = 0;  ///< target_us() of the chunk before; 0: none
  };

  /// Starts a micro-batch that has `decodes` already. `backlog`: lengths of all prompts that are not entirely
  /// prefilled.
  void begin(const BatchShape& decodes, const std::vector<uint32_t>& backlog);
  /// Returns the time that a micro-batch should take whose first chunk is cut from `prompt`; 0: chunks are not cut by
  /// time.
  [[nodiscard]] double target_us(const Prompt& prompt) const;
  /// Returns the tokens of `prompt` that fit into the micro-batch; 0: it is full. The first chunk always fits.
  [[nodiscard]] uint32_t chunk_tokens(const Prompt& prompt) const;
  /// Counts a chunk of `prompt` in the micro-batch.
  void add_chunk(const Prompt& prompt, uint32_t tokens);
  /// Returns whether all that is left of `prompt` fits before a longer prompt's chunk, in at most `max_tokens` tokens.
  [[nodiscard]] bool fits_whole(const Prompt& prompt, uint32_t max_tokens) const;
  /// Counts all that is left of `prompt` in the micro-batch.
  void add_short(const Prompt& prompt);
  /// Returns whether chunks are cut to equal cost; only then begin() reads the backlog.
  [[nodiscard]] bool is_balanced() const { return options_.mode == Chunking::kBalanced && costs_.usable(); }

 private:
  void add_sample(StageId stage, const BatchShape& shape, double run_us);
  [[nodiscard]] double balanced_target(const std::vector<uint32_t>& backlog) const;
  [[nodiscard]] uint32_t balanced_chunk(const Prompt& prompt, uint32_t max_tokens) const;
  [[nodiscard]] uint32_t published_size(uint32_t prefix) const;
  [[nodiscard]] uint32_t step_near(double tokens) const;
  [[nodiscard]] uint32_t rounded_down(double tokens, uint32_t step) const;
  [[nodiscard]] uint32_t budget_for(const Prompt& prompt) const;

  const ChunkingOptions options_;
  const uint32_t alignment_;
  const double fill_cost_ratio_;
  CostModel costs_;
  std::vector<std::pair<double, double>> profile_samples_;  // of stage 0: (length, µs)
  std::optional<QuadraticFit> published_;
  double peak_target_us_ = 0;  // the largest target since the backlog was empty

  // The micro-batch that is being put together.
  BatchShape shape_;
  uint32_t tokens_left_ = 0;
  double target_us_ = 0;
  bool has_chunk_ = false;  // add_chunk() was called for it
};

}  // namespace millrace::sched
