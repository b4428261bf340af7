#pragma once

#include <vector>

#include "sched/scheduler/cost_model.h"

namespace millrace::sched {

/// One stage's time for a micro-batch of the startup profile.
struct ProfileTiming {
  StageId stage;
  BatchShape shape;
  double run_us = 0;
};

/// Shortens times that are far above a fit of their stage's costs: other load on the machine slows a run down now and
/// then, sometimes many times. The fit is of a low quantile, by iteratively reweighted least squares of the relative
/// error. A run that is slower than predicted weighs less than a faster one, and the less the further off it is.
void clamp_outliers(std::vector<ProfileTiming>& timings);

}  // namespace millrace::sched
