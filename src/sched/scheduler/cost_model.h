#pragma once

#include <optional>
#include <vector>

#include "base/ids.h"
#include "sched/scheduler/cost_coefficients.h"
#include "sched/scheduler/cost_fit.h"
#include "sched/scheduler/shared_machine.h"

namespace millrace::sched {

/// The cost of a micro-batch on every stage. Plain data of Chunker and CostTracker.
class CostModel {
 public:
  void calibrate(StageId stage, const BatchShape& shape, double run_us) { fit(stage).calibrate(shape, run_us); }
  void observe(StageId stage, const BatchShape& shape, double run_us) { fit(stage).observe(shape, run_us); }
  /// Makes the fit of every stage its prior.
  void set_prior();
  /// Returns whether every stage that has reported can be predicted, and there is one.
  [[nodiscard]] bool usable() const;
  /// Returns the prompt tokens' share of a stage's time; 0 while nothing is known of the stage.
  [[nodiscard]] double prompt_share(StageId stage, const BatchShape& shape) const;
  /// Returns the time that the slowest stage takes.
  [[nodiscard]] double slowest_us(const BatchShape& shape) const;
  /// Returns the time that the slowest stage takes for a prompt of `tokens` tokens.
  [[nodiscard]] double slowest_prompt_us(uint32_t tokens) const;
  /// Returns the largest chunk with which no stage takes longer than `target_us`.
  [[nodiscard]] double chunk_for(const BatchShape& shape, uint32_t prefix, double target_us) const;
  /// Returns the time from one step of a sequence to its next if the decode steps `all` go in `groups` micro-batches of
  /// equal size. It is the longest of three times: a micro-batch's way through all stages, the runs of all groups on
  /// the slowest stage, and all runs on a shared machine. `transit_us` is the part of the way that is not spent in
  /// runs.
  [[nodiscard]] double round_us(const BatchShape& all, uint32_t groups, double transit_us,
                                const std::optional<SharedMachine>& machine = {}) const;
  /// Returns the cost of one more row of a sequence in a micro-batch of these decode steps, relative to their average
  /// cost. It is near 0 if all read the same weights, 1 if each computes for itself. For n up to three n / (n + 3) is
  /// an upper bound, since weights take no less time to read than three rows to compute. For more it is 1 until costs
  /// are known.
  [[nodiscard]] double extra_row_cost(const BatchShape& decodes) const;
  /// Returns the largest number of micro-batches, up to `max_groups`, whose round is within 2 % of the shortest.
  [[nodiscard]] uint32_t decode_groups(const BatchShape& all, uint32_t max_groups, double transit_us,
                                       const std::optional<SharedMachine>& machine = {}) const;
  [[nodiscard]] const std::vector<CostFit>& stages() const { return stages_; }

 private:
  [[nodiscard]] CostFit& fit(StageId stage);

  std::vector<CostFit> stages_;
};

}  // namespace millrace::sched
