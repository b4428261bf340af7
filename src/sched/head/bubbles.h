#pragma once

#include "sched/plan/plan_record.h"

namespace millrace::sched {

/// Explains, on every stage, the time between the end of `previous` and the begin of `record`, the next plan with
/// slices of the same epoch: fills StageSpan::wait, whose sum is exactly that time (0 where they overlap by an
/// error of the estimated clocks). A bubble travels with its plan: a stage inherits the causes of the bubble that the
/// stage before it had in front of the same plan, and adds its own.
void attribute_waits(const PlanRecord& previous, PlanRecord& record);

}  // namespace millrace::sched
