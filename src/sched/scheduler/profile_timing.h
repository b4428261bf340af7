#pragma once

#include <vector>

#include "sched/scheduler/cost_model.h"

namespace millrace::sched {

/// A micro-batch as the start's profile timed it.
struct ProfileTiming {
  StageId stage;
  BatchShape shape;
  double run_us = 0;
};

/// Shortens the times that stand out against the other ones of their stage: whatever else a machine does makes a run
/// slower now and then, sometimes many times. The others are told apart by a fit of their costs in which a run slower
/// than predicted weighs less than a faster one, and each the less the further off it is (a low quantile, by
/// iteratively reweighted least squares of the relative error).
void clamp_outliers(std::vector<ProfileTiming>& timings);

}  // namespace millrace::sched
