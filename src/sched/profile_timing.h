#pragma once

#include "sched/cost_model.h"

namespace millrace::sched {

/// A micro-batch as the start's profile timed it.
struct ProfileTiming {
  StageId stage;
  BatchShape shape;
  double run_us = 0;
};

}  // namespace millrace::sched
