#include "sched/scheduler/profile_timing.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

namespace millrace::sched {
namespace {

constexpr int kFitPasses = 12;
/// Errors below this share count alike.
constexpr double kMinResidual = 0.02;
/// Of a run slower than predicted against one as much faster: the fit leaves about a quarter of the runs below it.
constexpr double kSlowWeight = 1.0 / 3;
/// No run counts for longer than this many times its prediction.
constexpr double kMaxExcess = 1.5;

using Fit = NonNegativeLeastSquares<kCostTerms>;

Fit::Vector terms_of(const BatchShape& shape) {
  return {1, shape.prefill_tokens, shape.prefill_pairs, shape.decode_count, shape.decode_context};
}

double predict_us(const Fit::Vector& costs, const BatchShape& shape) {
  const Fit::Vector terms = terms_of(shape);
  double us = 0;
  for (size_t i = 0; i < kCostTerms; ++i) us += costs[i] * terms[i];
  return us;
}

Fit::Vector fit(const std::vector<ProfileTiming*>& timings) {
  Fit::Vector costs{};
  for (int pass = 0; pass < kFitPasses; ++pass) {
    Fit fit;
    for (const ProfileTiming* timing : timings) {
      double weight = 1;
      if (pass > 0) {
        const double slower = 1 - predict_us(costs, timing->shape) / timing->run_us;
        weight = (slower > 0 ? kSlowWeight : 1) / std::max(std::abs(slower), kMinResidual);
      }
      Fit::Vector relative = terms_of(timing->shape);
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
    const Fit::Vector costs = fit(its_timings);
    for (ProfileTiming* timing : its_timings) {
      const double most = kMaxExcess * predict_us(costs, timing->shape);
      if (most > 0) timing->run_us = std::min(timing->run_us, most);
    }
  }
}

}  // namespace millrace::sched
