#pragma once

#include "sched/scheduler/scheduler_options.h"

namespace millrace::app {

/// Logs the pools of window groups, and how many requests of several lengths run at once. It warns where windows or
/// states keep short ones from it.
void report_pools(const sched::SchedulerOptions& options);

}  // namespace millrace::app
