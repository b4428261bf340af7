#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "sched/scheduler/least_squares.h"
#include "sched/scheduler/shared_machine.h"

namespace millrace::sched {

struct PlanSlice;

/// What a micro-batch asks of a stage: the sums over which its time is linear (docs/scheduling.md).
struct BatchShape {
  double prefill_tokens = 0;  ///< Σx
  double prefill_pairs = 0;   ///< Σ(2·L·x + x²): twice the pairs of a token and a token it attends to
  double decode_count = 0;    ///< n
  double decode_context = 0;  ///< Σctx

  void add_prefill(uint32_t prefix, uint32_t tokens);
  /// A step of `rows` tokens, the last of them at the end of the context: all read it together.
  void add_decode(uint32_t context, uint32_t rows = 1);
  void add(const PlanSlice& slice);
};

inline constexpr size_t kCostTerms = 5;

/// t = fixed + per_token·Σx + per_pair·Σ(2·L·x + x²) + per_decode·n + per_context·Σctx, microseconds; none is negative.
struct CostCoefficients {
  double fixed_us = 0;
  double per_token_us = 0;
  double per_pair_us = 0;
  double per_decode_us = 0;
  double per_context_us = 0;

  [[nodiscard]] double predict_us(const BatchShape& shape) const;
  /// What each coefficient has in that, in their order.
  [[nodiscard]] std::array<double, kCostTerms> terms_us(const BatchShape& shape) const;
  /// The part of it that prompt tokens take.
  [[nodiscard]] double prompt_us(const BatchShape& shape) const;
  /// Tokens x of a chunk after `prefix` tokens for which shape and chunk together take `target_us`; 0 when the shape
  /// alone takes as long.
  [[nodiscard]] double chunk_for(const BatchShape& shape, uint32_t prefix, double target_us) const;
  /// More prompt tokens take longer: else it is not known what they cost.
  [[nodiscard]] bool is_increasing() const { return per_token_us > 0 || per_pair_us > 0; }
};

/// One stage's coefficients from its timings: recursive least squares of the relative error with exponential
/// forgetting, kept in information form, so that the coefficients are the best non-negative ones. Beside it each term
/// has a memory, at first of the start's profile, that only timings made of that term renew: hours of decode alone
/// don't unlearn prefill, and a profile that was disturbed does not stay for ever. Plain data of the scheduler.
class CostFit {
 public:
  /// Takes in one timing of the start's profile. All of them count: the first few determine so little that the next
  /// kind of work may look like an outlier.
  void calibrate(const BatchShape& shape, double run_us);
  /// Takes in one timing; an outlier is dropped, unless so many lately show that the stage, or one kind of its
  /// work, has changed: then it starts over.
  void observe(const BatchShape& shape, double run_us);
  /// What has been taken in so far becomes the memory of every term: of any kind of work, it fades out only as more of
  /// that kind is observed. It is also what stands in from now on.
  void set_prior();
  /// False: too few timings, or predictions have been too far off lately; coefficients() must not be relied on.
  [[nodiscard]] bool usable() const;
  [[nodiscard]] const CostCoefficients& coefficients() const { return coefficients_; }
  /// At the machine's speed in the last timings: coefficients() are a mean over hundreds.
  [[nodiscard]] CostCoefficients recent_coefficients() const { return recent_speed_.apply(coefficients_); }
  /// What stands for them while they are not usable: those of the start's profile, without one those that the fit had
  /// when it first started over, at the speed of the timings since. Nothing: there were none.
  [[nodiscard]] std::optional<CostCoefficients> fallback() const;
  /// Mean of |measured / predicted − 1| over the last timings.
  [[nodiscard]] double relative_error() const { return relative_error_; }

 private:
  using Information = NonNegativeLeastSquares<kCostTerms>;

  /// Time measured over time predicted in the last timings, each counted by the share that one kind of work had in it.
  struct SpeedRatio {
    double run_us = 0;
    double predicted_us = 0;
    void add(double share, double run, double predicted);
    [[nodiscard]] double ratio() const { return predicted_us > 0 ? run_us / predicted_us : 1; }
  };
  /// How fast the machine was lately by some coefficients. The terms of prompt tokens and the others have a speed each,
  /// since products and reading memory don't slow down together.
  struct SpeedRatios {
    SpeedRatio prompt;
    SpeedRatio other;
    void add(const CostCoefficients& coefficients, const BatchShape& shape, double run_us);
    [[nodiscard]] CostCoefficients apply(const CostCoefficients& coefficients) const;
  };
  struct FallbackFit {
    CostCoefficients coefficients;
    SpeedRatios since;
  };

  static void add(const BatchShape& shape, double run_us, double weight, Information& information);
  void count_outlier(bool outlier, double prompt_share);
  void update_prior(const BatchShape& shape, double run_us);
  [[nodiscard]] double off_model_share(size_t term, const BatchShape& shape) const;
  void start_over();
  void solve();

  Information recent_;
  std::array<Information, kCostTerms> prior_;  // as the coefficients
  CostCoefficients coefficients_;
  uint64_t observations_ = 0;
  std::array<double, 3> outlier_shares_{};  // of the last timings; of those of prompts; of those of the rest
  double relative_error_ = 0;
  SpeedRatios recent_speed_;
  std::optional<FallbackFit> fallback_fit_;  // of set_prior(); without one, of the first start over
};

/// The cost of a micro-batch on every stage. Owned by the scheduler.
class CostModel {
 public:
  void calibrate(StageId stage, const BatchShape& shape, double run_us) { fit(stage).calibrate(shape, run_us); }
  void observe(StageId stage, const BatchShape& shape, double run_us) { fit(stage).observe(shape, run_us); }
  void set_prior();  ///< every stage's
  /// Whether every stage heard of so far can be predicted, and there is one.
  [[nodiscard]] bool usable() const;
  /// Of a stage's time for a micro-batch, the part that its prompt tokens take; 0 as long as nothing is known of it.
  [[nodiscard]] double prompt_share(StageId stage, const BatchShape& shape) const;
  /// The time that the slowest stage takes.
  [[nodiscard]] double slowest_us(const BatchShape& shape) const;
  /// The same for a prompt of so many tokens.
  [[nodiscard]] double slowest_prompt_us(uint32_t tokens) const;
  /// The largest chunk with which no stage takes longer than `target_us`.
  [[nodiscard]] double chunk_for(const BatchShape& shape, uint32_t prefix, double target_us) const;
  /// Time from one step of a sequence to its next when the decode steps `all` go in `groups` micro-batches of equal
  /// size, and a micro-batch is under way for `transit_us` besides its runs: the way through all stages, the turns of
  /// all groups on the slowest, or all runs on the machine that the stages share, whichever is longest.
  [[nodiscard]] double round_us(const BatchShape& all, uint32_t groups, double transit_us,
                                const std::optional<SharedMachine>& machine = {}) const;
  /// What one more row of a sequence costs beside these decode steps, as a part of what each of them takes on average:
  /// near 0 where all read the same weights, 1 where each computes for itself. Of up to three at most n / (n + 3):
  /// reading the weights takes at least as long as computing with three rows. Of more 1 until costs are known.
  [[nodiscard]] double extra_row_cost(const BatchShape& decodes) const;
  /// The largest number of micro-batches, up to `most`, whose round is within 2 % of the shortest.
  [[nodiscard]] uint32_t decode_groups(const BatchShape& all, uint32_t most, double transit_us,
                                       const std::optional<SharedMachine>& machine = {}) const;
  [[nodiscard]] const std::vector<CostFit>& stages() const { return stages_; }

 private:
  [[nodiscard]] CostFit& fit(StageId stage);

  std::vector<CostFit> stages_;
};

}  // namespace millrace::sched
