#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/enum_names.h"
#include "sched/scheduler/cost_model.h"

namespace millrace::sched {

enum class Chunking : uint8_t {
  kFixed,      ///< chunked_prefill_size tokens per micro-batch
  kPublished,  ///< sizes from a quadratic fit of stage 0 without prefixes, as published for another server
  kBalanced,   ///< sizes that take the slowest stage one target time, whatever else is in the micro-batch
};

inline constexpr EnumName<Chunking> kChunkingNames[] = {
    {Chunking::kFixed, "fixed"},
    {Chunking::kPublished, "published"},
    {Chunking::kBalanced, "balanced"},
};
constexpr std::span<const EnumName<Chunking>> enum_names(Chunking) {
  return kChunkingNames;
}

struct ChunkingOptions {
  Chunking mode = Chunking::kFixed;
  uint32_t size = 0;        ///< most prompt tokens in a micro-batch: --chunked-prefill-size
  double smoothing = 0.75;  ///< how far a chunk follows what is computed, balanced: in time, 1 entirely
  uint32_t page_size = 64;  ///< chunks are multiples of max(page_size, 64), small balanced ones of a part of it
  uint32_t stage_count = 1;
  /// Stages that compute at full speed at the same time, where all share one machine's processors.
  double parallel_stages = std::numeric_limits<double>::infinity();
};

/// Prompt tokens of the largest micro-batch: `size`, or as far as the published algorithm times its first stage.
[[nodiscard]] uint32_t max_prompt_tokens(Chunking mode, uint32_t size);

/// f(l) = a·l² + b·l + c, the time of a prompt of l tokens.
struct QuadraticFit {
  double a = 0;
  double b = 0;
  double c = 0;

  /// Least squares over (length, time) pairs; nothing when they don't determine a growing curve.
  [[nodiscard]] static std::optional<QuadraticFit> fit(const std::vector<std::pair<double, double>>& samples);
  /// x with f(prefix + x) − f(prefix) = f(first) − f(0).
  [[nodiscard]] double chunk_for(double prefix, double first) const;
};

/// Decides how many prompt tokens go into micro-batches. Owned by the scheduler. docs/scheduling.md has the rules.
class Chunker {
 public:
  explicit Chunker(const ChunkingOptions& options);

  /// A stage's time for a micro-batch that has run.
  void observe(StageId stage, const BatchShape& shape, double run_us);
  /// One of the start's profile.
  void calibrate(StageId stage, const BatchShape& shape, double run_us);
  /// The profile is complete.
  void finish_profile();
  [[nodiscard]] const CostModel& costs() const { return costs_; }
  [[nodiscard]] const ChunkingOptions& options() const { return options_; }

  /// A prompt as it stands when the next chunk is cut.
  struct Prompt {
    uint32_t prefix = 0;        ///< tokens that earlier chunks hold
    uint32_t left = 0;          ///< tokens after it, at least 1
    double last_target_us = 0;  ///< target_us() of the chunk before; 0: none
  };

  /// Starts a micro-batch that holds `decodes` already. `backlog`: lengths of the prompts not entirely prefilled.
  void begin(const BatchShape& decodes, const std::vector<uint32_t>& backlog);
  /// The time that a micro-batch is to take whose first chunk is cut from `prompt`; 0: chunks are not cut by time.
  [[nodiscard]] double target_us(const Prompt& prompt) const;
  /// Tokens of `prompt` that fit the micro-batch; 0: it is full. The first chunk always fits, beside any decodes.
  [[nodiscard]] uint32_t chunk_tokens(const Prompt& prompt) const;
  void add_chunk(const Prompt& prompt, uint32_t tokens);
  /// Whether all that is left of `prompt` fits beside a longer prompt's chunk, in at most `most` tokens.
  [[nodiscard]] bool fits_whole(const Prompt& prompt, uint32_t most) const;
  void add_short(const Prompt& prompt);
  /// Chunks are of equal cost, for which begin() has to know what waits.
  [[nodiscard]] bool is_balanced() const { return options_.mode == Chunking::kBalanced && costs_.usable(); }

 private:
  void add_sample(StageId stage, const BatchShape& shape, double run_us);
  [[nodiscard]] double balanced_target(const std::vector<uint32_t>& backlog) const;
  [[nodiscard]] uint32_t balanced_chunk(const Prompt& prompt, uint32_t most) const;
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
  double peak_target_us_ = 0;  // the largest target since prompts wait without a break

  // The micro-batch that is being put together.
  BatchShape shape_;
  uint32_t tokens_left_ = 0;
  double target_us_ = 0;
  bool has_chunk_ = false;  // add_chunk() has been called
};

}  // namespace millrace::sched
