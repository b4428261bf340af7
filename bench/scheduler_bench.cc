// The head's own time per plan: Scheduler::next() and complete() over the chunks of one long prompt, then over decode
// steps of many sequences. Usage: scheduler_bench
#include <fmt/core.h>

#include <chrono>

#include "sched/scheduler.h"

using namespace millrace;
using namespace millrace::sched;

namespace {

using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

/// Answers a plan as stages would whose time follows DESIGN's formula.
void answer(Scheduler& scheduler, const Plan& plan, uint64_t id) {
  PlanOutput output;
  BatchShape shape;
  for (const PlanSlice& slice : plan.slices) {
    SliceOutput& made = output.slices.emplace_back();
    if (slice.sample) made.sample.emplace().token = 9;
    shape.add_prefill(slice.prefix, slice.token_count);
  }
  const CostCoefficients cost{10000, 10, 2e-4, 0, 0};
  for (uint32_t stage = 0; stage < 8; ++stage) {
    output.reports.push_back({StageId(stage), PlanId(id), 0, static_cast<int64_t>(cost.predict_us(shape) * 1e3)});
  }
  (void)scheduler.complete(output);
}

SchedulerOptions options() {
  SchedulerOptions made;
  made.page_count = 20000;
  made.max_running = 1024;
  made.window = 8;
  made.chunked_prefill_size = 8192;
  made.context_length = 1 << 20;
  made.stage_count = 8;
  made.chunking = Chunking::kBalanced;
  return made;
}

/// A prompt that shares no page with those made before.
GenerateRequest request(uint32_t prompt, uint32_t max_tokens) {
  static TokenId next = 1;
  GenerateRequest made;
  made.prompt.assign(prompt, next++);
  made.max_tokens = max_tokens;
  return made;
}

void bench_long_prompt() {
  Scheduler scheduler(options());
  uint64_t plan_id = 0;
  while (scheduler.profiling()) answer(scheduler, *scheduler.next(), plan_id++);
  scheduler.add(SequenceId(1), request((1 << 20) - 10, 2));
  fmt::print("one prompt of a million tokens, 8 stages\n{:>10} {:>8} {:>12}\n", "context", "plans", "us per plan");
  uint32_t reported = 0;
  uint32_t plans = 0;
  double total_us = 0;
  uint32_t context = 0;
  while (!scheduler.empty()) {
    const auto start = Clock::now();
    const auto plan = scheduler.next();
    answer(scheduler, *plan, plan_id++);
    total_us += microseconds_since(start);
    ++plans;
    context = plan->slices[0].prefix + plan->slices[0].token_count;
    if (context - reported < (1 << 17) && !scheduler.empty()) continue;
    fmt::print("{:>10} {:>8} {:>12.1f}\n", context, plans, total_us / plans);
    reported = context;
    plans = 0;
    total_us = 0;
  }
}

void bench_decodes(uint32_t count) {
  Scheduler scheduler(options());
  uint64_t plan_id = 0;
  while (scheduler.profiling()) answer(scheduler, *scheduler.next(), plan_id++);
  for (uint32_t id = 1; id <= count; ++id) scheduler.add(SequenceId(id), request(100, 400));
  const auto start = Clock::now();
  const uint64_t first = plan_id;
  while (!scheduler.empty()) answer(scheduler, *scheduler.next(), plan_id++);
  fmt::print("{:>4} sequences: {:.1f} us per plan\n", count,
             microseconds_since(start) / static_cast<double>(plan_id - first));
}

}  // namespace

int main() {
  bench_long_prompt();
  for (const uint32_t count : {1, 16, 64, 256, 1024}) bench_decodes(count);
  return 0;
}
