#include "sched/head/ring_costs.h"

#include "sched/scheduler/scheduler.h"

namespace millrace::sched {

RingCosts ring_costs_of(const Scheduler& scheduler) {
  const SchedulerOptions& options = scheduler.options();
  RingCosts costs{.page_size = options.page_size,
                  .page_count = options.page_count,
                  .max_running = options.max_running,
                  .context_length = options.context_length,
                  .processors = options.processors,
                  .stage_threads = options.stage_threads,
                  .contention = scheduler.contention()};
  if (scheduler.profiling()) return costs;
  for (const CostFit& stage : scheduler.isolated_costs().stages()) {
    const auto known = stage.usable() ? stage.recent_coefficients() : stage.fallback();
    if (!known) break;
    if (!stage.usable()) costs.fallbacks.emplace_back(static_cast<uint32_t>(costs.stages.size()));
    costs.stages.push_back(*known);
    costs.relative_errors.push_back(stage.relative_error());
  }
  if (costs.stages.size() < options.stage_count) {
    costs.stages.clear();
    costs.relative_errors.clear();
  }
  return costs;
}

}  // namespace millrace::sched
