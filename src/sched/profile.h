#pragma once

#include <optional>
#include <vector>

#include "sched/cost_model.h"
#include "sched/plan.h"

namespace millrace::sched {

struct ProfileBounds {
  uint32_t page_size = 0;
  uint32_t page_count = 0;
  uint32_t max_running = 0;
  uint32_t chunk_size = 0;      ///< most prompt tokens in a micro-batch
  uint32_t context_length = 0;
  uint32_t prompt_samples = 0;  ///< prompts of so many lengths, evenly up to longest_sample, besides
  uint32_t longest_sample = 0;
  uint32_t vocab_size = 0;      ///< ids that every stage knows
};

/// The plans that time every stage before the first request: prompts of several lengths, chunks after a prefix, decode
/// steps of one and of many sequences, on scratch sequences whose slots are closed again. The largest comes first, to
/// touch all memory, and does not count; the others are run in up to kRounds rounds, of which the shortest time counts:
/// what else goes on beside a stage only makes it slower. After kFewestRounds none begins once the stages have run for
/// kLongEnoughUs in all, since clients wait. Ordinary plans, so that the stages know nothing of it. Used by the
/// scheduler while nothing else runs.
class Profile {
 public:
  explicit Profile(const ProfileBounds& bounds);

  /// The next plan, whose id will be `plan`. The last one is empty: it closes the scratch sequences, and brings the
  /// last timings home.
  [[nodiscard]] std::optional<Plan> next(uint64_t plan);
  [[nodiscard]] bool finished() const { return next_step_ > order_.size(); }

  /// A stage's time for a plan; plans of others are ignored.
  void record(uint64_t plan, StageId stage, const BatchShape& shape, double run_us);
  struct Timing {
    StageId stage;
    BatchShape shape;
    double run_us = 0;
  };
  /// What was measured: every round's, with the shortest time of all rounds.
  [[nodiscard]] std::vector<Timing> timings() const;

  static constexpr size_t kRounds = 3;
  static constexpr size_t kFewestRounds = 2;
  static constexpr double kLongEnoughUs = 5e6;

 private:
  struct Step {
    uint32_t sequences = 1;
    uint32_t tokens = 0;          // of each
    bool fresh = false;           // on new sequences; else the next tokens of those that are open
    bool counts = true;
    bool once = false;            // in the first round only
    std::vector<Timing> best{};   // by stage
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
  std::vector<size_t> order_;  // of steps_, as they are run
  std::vector<size_t> rounds_;  // where in order_ those begin that may be left out
  size_t next_step_ = 0;       // of order_
  double run_us_ = 0;          // of all plans on all stages
  std::vector<uint64_t> ids_;  // of the plans made, ascending
  std::vector<Scratch> open_;  // by slot
  uint32_t used_pages_ = 0;
};

}  // namespace millrace::sched
