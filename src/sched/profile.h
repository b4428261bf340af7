#pragma once

#include <optional>
#include <vector>

#include "sched/plan.h"

namespace millrace::sched {

struct ProfileBounds {
  uint32_t page_size = 0;
  uint32_t page_count = 0;
  uint32_t max_running = 0;
  uint32_t chunk_size = 0;      ///< most prompt tokens in a micro-batch
  uint32_t context_length = 0;
  uint32_t prompt_samples = 0;  ///< prompts of so many lengths, evenly up to the chunk size, besides
  uint32_t vocab_size = 0;      ///< ids that every stage knows
};

/// The plans that time every stage before the first request: prompts of several lengths, chunks after a prefix, decode
/// steps of one and of many sequences, on scratch sequences whose slots are closed again. Ordinary plans, so that the
/// stages know nothing of it. Used by the scheduler while nothing else runs.
class Profile {
 public:
  explicit Profile(const ProfileBounds& bounds);

  /// The next plan. The last one is empty: it closes the scratch sequences, and brings the last timings home.
  [[nodiscard]] std::optional<Plan> next();
  [[nodiscard]] bool finished() const { return next_step_ > steps_.size(); }

 private:
  struct Step {
    uint32_t sequences = 1;
    uint32_t tokens = 0;  // of each
    bool fresh = false;   // on new sequences; else the next tokens of those that are open
  };
  struct Scratch {
    uint32_t length = 0;
    uint32_t page_count = 0;
    uint64_t table_digest = 0;
  };

  void add_prefills();
  void add_decodes();
  void close_all(Plan& plan);
  void append(Plan& plan, uint32_t slot, uint32_t tokens);

  const ProfileBounds bounds_;
  std::vector<Step> steps_;
  size_t next_step_ = 0;
  std::vector<Scratch> open_;  // by slot
  uint32_t used_pages_ = 0;
};

}  // namespace millrace::sched
