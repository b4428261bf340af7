#include "sched/scheduler/cost_tracker.h"

#include <algorithm>
#include <limits>

namespace millrace::sched {
namespace {

/// Prompts of the first stage that the published chunking algorithm is fitted to.
constexpr uint32_t kPublishedSamples = 128;
/// Plans whose reports may still come.
constexpr size_t kMaxShapes = 1024;

std::optional<SharedMachine> machine_of(const SchedulerOptions& options, const Contention& contention) {
  if (options.processors == 0 || options.stage_count < 2) return std::nullopt;
  return SharedMachine{options.processors, options.stage_threads, contention};
}

StartupProfilerOptions profiler_options(const SchedulerOptions& options) {
  return {.page_size = options.page_size,
          .page_count = options.page_count,
          .windows = window_pools(options, first_pools(options)),
          .max_running = options.max_running,
          .chunk_size = options.chunked_prefill_size,
          .context_length = options.context_length,
          .prompt_samples = options.chunking == Chunking::kPublished ? kPublishedSamples : 0,
          .longest_sample = max_prompt_tokens(options.chunking, options.chunked_prefill_size),
          .vocab_size = options.vocab_size,
          .sample = options.has_output_head,
          .stage_count = options.stage_count,
          .window = options.window,
          .machine = machine_of(options, {})};
}

bool loads_pages(const Plan& plan) {
  return std::ranges::any_of(plan.copies, [](const auto& copy) { return copy.kind == cache::CopyKind::kLoad; });
}

}  // namespace

double parallel_stages(const SchedulerOptions& options) {
  const auto machine = machine_of(options, {});
  return machine ? machine->full_speed_runs() : std::numeric_limits<double>::infinity();
}

CostTracker::CostTracker(const SchedulerOptions& options, Chunker& chunker) : options_(options), chunker_(chunker) {
  if (options.chunking != Chunking::kFixed) profiler_.emplace(profiler_options(options));
  set_contention({});
}

// One plan at a time, so that no stage computes while another does on the same processors, unless that is timed.
std::optional<Plan> CostTracker::next_profile_plan(uint64_t plan_id, size_t in_flight_count) {
  if (in_flight_count > 0 && !profiler_->allows_overlap()) return std::nullopt;
  return profiler_->next(plan_id);
}

void CostTracker::end_profile_if_finished(size_t in_flight_count) {
  if (!profiler_ || !profiler_->finished() || in_flight_count > 0) return;
  for (const auto& [stage, shape, run_us] : profiler_->timings()) {
    chunker_.calibrate(stage, shape, run_us);
    isolated_costs_.calibrate(stage, shape, run_us);
  }
  const Contention contention = profiler_->contention(isolated_costs_);
  profiler_.reset();
  chunker_.finish_profile();
  isolated_costs_.set_prior();
  set_contention(contention);
}

// A run that waits for its pages to come from the host says nothing of what computing costs.
void CostTracker::record_plan(const Plan& plan) {
  std::optional<BatchShape>& shape = shapes_.emplace_back();
  if (!loads_pages(plan)) {
    shape.emplace();
    for (const PlanSlice& slice : plan.slices) shape->add(slice);
  }
  if (shapes_.size() <= kMaxShapes) return;
  shapes_.pop_front();
  ++first_shape_;
}

void CostTracker::observe(const std::vector<StageReport>& reports) {
  for (const StageReport& report : reports) {
    if (report.rank > 0) continue;  // ranks wait for one another, so that the leader's time is the stage's
    const uint64_t plan = report.plan.value();
    const bool is_known = plan >= first_shape_ && plan - first_shape_ < shapes_.size();
    if (is_known && report.stage.value() < options_.stage_count) observe(report, shapes_[plan - first_shape_]);
  }
}

void CostTracker::observe(const StageReport& report, const std::optional<BatchShape>& shape) {
  if (profiler_) {
    if (shape) profiler_->record(report, *shape);
    return;
  }
  if (shape) chunker_.observe(report.stage, *shape, static_cast<double>(report.run_ns()) * 1e-3);
  if (!contention_estimator_) return;
  const double prompt_share = isolated_costs_.prompt_share(report.stage, shape.value_or(BatchShape{}));
  const ContentionEstimator::Run run{.stage = report.stage,
                                     .plan = report.plan.value(),
                                     .shape = shape,
                                     .begin_ns = report.begin_ns,
                                     .end_ns = report.end_ns,
                                     .prompt_share = prompt_share};
  for (const ContentionEstimator::IsolatedRun& isolated : contention_estimator_->add(run)) {
    isolated_costs_.observe(isolated.stage, isolated.shape, isolated.run_us);
  }
}

void CostTracker::on_ring_lost() {
  shapes_.clear();
  first_shape_ = 0;
  if (profiler_) profiler_.emplace(profiler_options(options_));
  set_contention(contention());
}

void CostTracker::resize(const SchedulerOptions& options) {
  options_ = options;
  if (profiler_) profiler_.emplace(profiler_options(options_));
}

void CostTracker::set_contention(const Contention& contention) {
  machine_ = machine_of(options_, contention);
  contention_estimator_.reset();
  if (machine_) contention_estimator_.emplace(options_.stage_count, options_.window, *machine_);
}

}  // namespace millrace::sched
