#pragma once

#include "sched/plan/plan_record.h"

namespace millrace::sched {

/// Explains each stage's time between the end of `previous` and the begin of `record`, the next plan with slices of the
/// same epoch. Fills StageSpan::wait, whose sum is exactly that time, or 0 where clock errors make the two overlap. A
/// bubble travels with its plan: a stage inherits the causes that the stage before had for the same plan, and adds its
/// own.
void attribute_waits(const PlanRecord& previous, PlanRecord& record);

}  // namespace millrace::sched
