#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <vector>

#include "sched/scheduler/scheduler.h"

/// Measures the head's own time per turn. Decode steps of many sequences: Scheduler::next() and complete(), and the
/// plan's and output's wire forms. Chunks of one long prompt: next() and complete() alone.
namespace {

using namespace millrace;
using namespace millrace::sched;

using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

/// Returns the output of stages whose times follow the cost model's formula.
PlanOutput output_of(const Plan& plan, uint64_t id) {
  PlanOutput output;
  output.id = PlanId(id);
  BatchShape shape;
  for (const PlanSlice& slice : plan.slices) {
    SliceOutput& made = output.slices.emplace_back();
    made.samples.resize(slice.sample_count(), {.token = 9});
    shape.add_prefill(slice.prefix, slice.token_count);
  }
  const CostCoefficients cost{.fixed_us = 10000, .per_token_us = 10, .per_pair_us = 2e-4};
  for (uint32_t stage = 0; stage < 8; ++stage) {
    const auto run_ns = static_cast<int64_t>(cost.predict_us(shape) * 1e3);
    output.reports.push_back({.stage = StageId(stage), .plan = PlanId(id), .end_ns = run_ns});
  }
  return output;
}

void complete(Scheduler& scheduler, const Plan& plan, uint64_t id) {
  (void)scheduler.complete(output_of(plan, id));
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

/// Returns a request whose prompt shares no page with earlier ones.
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
  while (scheduler.profiling()) complete(scheduler, *scheduler.next(), plan_id++);
  scheduler.add(SequenceId(1), request((1 << 20) - 10, 2));
  fmt::print("one prompt of a million tokens, 8 stages\n{:>10} {:>8} {:>12}\n", "context", "plans", "us per plan");
  uint32_t reported = 0;
  uint32_t plans = 0;
  double total_us = 0;
  uint32_t context = 0;
  while (!scheduler.empty()) {
    const auto start = Clock::now();
    const auto plan = scheduler.next();
    complete(scheduler, *plan, plan_id++);
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

/// Returns microseconds per turn while all of `count` sequences decode, with a window of 8 plans in flight.
double decode_turn_us(uint32_t count, uint32_t turns) {
  Scheduler scheduler(options());
  uint64_t plan_id = 0;
  while (scheduler.profiling()) complete(scheduler, *scheduler.next(), plan_id++);
  for (uint32_t id = 1; id <= count; ++id) scheduler.add(SequenceId(id), request(4, 1000));
  std::vector<Plan> in_flight;  // the oldest first
  double total_us = 0;
  // The first turns prefill. Once every sequence has its first token, plans have decode steps only.
  const uint32_t skipped = 64 + count / 8;
  for (uint32_t turn = 0; turn < skipped + turns; ++turn) {
    auto start = Clock::now();
    double turn_us = 0;
    while (in_flight.size() < options().window) {
      auto plan = scheduler.next();
      if (!plan) break;
      plan->id = PlanId(plan_id++);
      (void)plan->encode();
      in_flight.push_back(std::move(*plan));
    }
    turn_us += microseconds_since(start);
    const auto bytes = output_of(in_flight.front(), in_flight.front().id.value()).encode();
    in_flight.erase(in_flight.begin());
    start = Clock::now();
    (void)scheduler.complete(PlanOutput::decode(bytes).value());
    turn_us += microseconds_since(start);
    if (turn >= skipped) total_us += turn_us;
  }
  return total_us / turns;
}

void bench_decodes(const std::vector<uint32_t>& counts, uint32_t turns, uint32_t rounds) {
  std::vector<std::vector<double>> values(counts.size());
  for (uint32_t round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < counts.size(); ++i) values[i].push_back(decode_turn_us(counts[i], turns));
  }
  fmt::print("decode steps, window 8: us per turn, median [min, max] of {} rounds\n", rounds);
  for (size_t i = 0; i < counts.size(); ++i) {
    std::sort(values[i].begin(), values[i].end());
    fmt::print("{:>6} running sequences: {:8.1f} [{:.1f}, {:.1f}]\n", counts[i], values[i][values[i].size() / 2],
               values[i].front(), values[i].back());
  }
}

}  // namespace

int main(int argc, char** argv) {
  uint32_t turns = 500;
  uint32_t rounds = 7;
  std::vector<uint32_t> counts = {1, 64, 256, 1024};
  CLI::App app("scheduler_bench: the head's own time per turn, us.");
  app.add_option("--turns", turns, "turns per round")->check(CLI::Range(1, 900))->capture_default_str();
  app.add_option("--rounds", rounds, "rounds over all counts")->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--running", counts, "running sequences, at most 1024")->check(CLI::Range(1, 1024));
  CLI11_PARSE(app, argc, argv);
  bench_decodes(counts, turns, rounds);
  bench_long_prompt();
  return 0;
}
