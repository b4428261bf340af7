#include "sched/scheduler/profile_timing.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

namespace millrace::sched {
namespace {

constexpr int kQuantileFitPasses = 12;
/// Relative errors below this one weigh alike.
constexpr double kMinQuantileResidual = 0.02;
/// Weight of a run slower than predicted relative to one as much faster: a quarter of the runs is below the fit.
constexpr double kSlowWeight = 1.0 / 3;
/// Times are cut to this many times their prediction.
constexpr double kMaxExcess = 1.5;

using Fit = NonNegativeLeastSquares<kCostTerms>;

double predict_us(const Fit::Vector& costs, const BatchShape& shape) {
  const Fit::Vector terms = shape.terms();
  double us = 0;
  for (size_t i = 0; i < kCostTerms; ++i) us += costs[i] * terms[i];
  return us;
}

Fit::Vector fit_quantile(const std::vector<ProfileTiming*>& timings) {
  Fit::Vector costs{};
  for (int pass = 0; pass < kQuantileFitPasses; ++pass) {
    Fit fit;
    for (const ProfileTiming* timing : timings) {
      double weight = 1;
      if (pass > 0) {
        const double slower = 1 - predict_us(costs, timing->shape) / timing->run_us;
        weight = (slower > 0 ? kSlowWeight : 1) / std::max(std::abs(slower), kMinQuantileResidual);
      }
      Fit::Vector relative = timing->shape.terms();
      for (double& term : relative) term /= timing->run_us;
      fit.add(relative, 1, weight);
    }
    costs = fit.solve();
  }
  return costs;
}

}  // namespace

void clamp_outliers(std::vector<ProfileTiming>& timings) {
  std::map<uint32_t, std::vector<ProfileTiming*>> by_stage;
  for (ProfileTiming& timing : timings) by_stage[timing.stage.value()].push_back(&timing);
  for (const auto& [stage, its_timings] : by_stage) {
    const Fit::Vector costs = fit_quantile(its_timings);
    for (ProfileTiming* timing : its_timings) {
      const double max_us = kMaxExcess * predict_us(costs, timing->shape);
      if (max_us > 0) timing->run_us = std::min(timing->run_us, max_us);
    }
  }
}

}  // namespace millrace::sched
