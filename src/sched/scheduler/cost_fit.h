#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "sched/scheduler/cost_coefficients.h"
#include "sched/scheduler/least_squares.h"

namespace millrace::sched {

/// One stage's coefficients, fitted to its timings by recursive least squares of the relative error with exponential
/// forgetting. It is kept in information form, so that the coefficients are the best non-negative ones. Each term also
/// has a prior, at first the startup profile's, which fades out only with timings made of that term. Hours of decode
/// alone don't unlearn prefill, and a disturbed profile does not stay forever. Plain data of CostModel.
class CostFit {
 public:
  /// Updates the fit with a timing of the startup profile, even if it looks like an outlier. The first few timings
  /// determine so little that the next kind of work may look like one.
  void calibrate(const BatchShape& shape, double run_us);
  /// Updates the fit with a timing. Outliers are dropped until many of them show that the stage, or one kind of its
  /// work, has changed: then the fit starts over.
  void observe(const BatchShape& shape, double run_us);
  /// Makes the fit so far the prior of every term, and the fallback.
  void set_prior();
  /// Returns whether coefficients() can be relied on: there are enough timings, and predictions were good lately.
  [[nodiscard]] bool usable() const;
  [[nodiscard]] const CostCoefficients& coefficients() const { return coefficients_; }
  /// Returns the coefficients at the machine's speed in the last timings: coefficients() are a mean over hundreds.
  [[nodiscard]] CostCoefficients recent_coefficients() const { return recent_speed_.apply(coefficients_); }
  /// Returns the coefficients to use while the fitted ones are not usable. They are the startup profile's, or those
  /// before the first start over, at the speed of the timings since. Nothing if there were none.
  [[nodiscard]] std::optional<CostCoefficients> fallback() const;
  /// Returns the mean of |measured / predicted − 1| over the last timings.
  [[nodiscard]] double relative_error() const { return relative_error_; }

 private:
  using Information = NonNegativeLeastSquares<kCostTerms>;

  /// Measured over predicted time of the last timings, each counted by the share of one kind of work.
  struct SpeedRatio {
    double run_us = 0;
    double predicted_us = 0;
    void add(double share, double run, double predicted);
    [[nodiscard]] double ratio() const { return predicted_us > 0 ? run_us / predicted_us : 1; }
  };
  /// The machine's recent speed relative to some coefficients. Prompt tokens and the rest have a speed each, since
  /// GEMMs and reading memory don't slow down together.
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
  std::array<Information, kCostTerms> prior_;  // in the order of the coefficients
  CostCoefficients coefficients_;
  uint64_t observations_ = 0;
  std::array<double, 3> outlier_shares_{};  // of the last timings; of those of prompts; of those of the rest
  double relative_error_ = 0;
  SpeedRatios recent_speed_;
  std::optional<FallbackFit> fallback_fit_;  // set by set_prior(); without one, by the first start over
};

}  // namespace millrace::sched
