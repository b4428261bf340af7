#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <deque>
#include <optional>
#include <vector>

#include "sched/scheduler/contention_profiler.h"

using namespace millrace;
using namespace millrace::sched;

namespace {

constexpr size_t kStages = 4;
constexpr size_t kProcessors = 2;
constexpr uint32_t kPromptTokens = 50;

const CostCoefficients kCost{.fixed_us = 500, .per_token_us = 200, .per_decode_us = 1500};

BatchShape shape_of(const Plan& plan) {
  BatchShape shape;
  for (const PlanSlice& slice : plan.slices) {
    if (slice.token_count > 1) {
      shape.add_prefill(slice.prefix, slice.token_count);
    } else {
      shape.add_decode(slice.prefix + 1);
    }
  }
  return shape;
}

/// Stages on processors that are scheduled like Linux does it: a run shares its processor evenly with other runs there,
/// and moves to another one only if that is idle.
class Machine {
 public:
  explicit Machine(const Contention& contention) : contention_(contention) {}

  void add(uint64_t plan, const BatchShape& shape) { waiting_[0].push_back({plan, shape}); }

  /// Advances to the end of the run that ends next, and returns its report and its plan's `shape`.
  StageReport next(BatchShape& shape) {
    for (size_t stage = 0; stage < kStages; ++stage) begin(stage);
    size_t first = kStages;
    double wait_us = 0;
    for (size_t stage = 0; stage < kStages; ++stage) {
      if (!runs_[stage]) continue;
      const double left_us = runs_[stage]->left_us / rate(stage);
      if (first == kStages || left_us < wait_us) {
        first = stage;
        wait_us = left_us;
      }
    }
    std::array<double, kStages> rates{};
    for (size_t stage = 0; stage < kStages; ++stage) rates[stage] = runs_[stage] ? rate(stage) : 0;
    for (size_t stage = 0; stage < kStages; ++stage) {
      if (runs_[stage]) runs_[stage]->left_us -= wait_us * rates[stage];
    }
    now_us_ += wait_us;
    const Run ended = *runs_[first];
    runs_[first].reset();
    balance();
    if (first + 1 < kStages) waiting_[first + 1].push_back(ended.job);
    shape = ended.job.shape;
    StageReport report;
    report.stage = StageId(static_cast<uint32_t>(first));
    report.plan = PlanId(ended.job.plan);
    report.begin_ns = static_cast<int64_t>(1e3 * ended.begin_us);
    report.end_ns = static_cast<int64_t>(1e3 * now_us_);
    return report;
  }

 private:
  struct Job {
    uint64_t plan = 0;
    BatchShape shape;
  };
  struct Run {
    Job job;
    size_t processor = 0;
    double begin_us = 0;
    double left_us = 0;
  };

  [[nodiscard]] size_t runs_on(size_t processor) const {
    return static_cast<size_t>(
        std::ranges::count_if(runs_, [&](const auto& run) { return run && run->processor == processor; }));
  }

  void begin(size_t stage) {
    if (runs_[stage] || waiting_[stage].empty()) return;
    const size_t processor = runs_on(0) <= runs_on(1) ? 0 : 1;
    const Job job = waiting_[stage].front();
    waiting_[stage].pop_front();
    runs_[stage] = Run{job, processor, now_us_, kCost.predict_us(job.shape)};
  }

  void balance() {
    for (size_t processor = 0; processor < kProcessors; ++processor) {
      if (runs_on(processor) > 0 || runs_on(1 - processor) < 2) continue;
      std::ranges::find_if(runs_, [](const auto& run) { return run.has_value(); })->value().processor = processor;
    }
  }

  [[nodiscard]] double rate(size_t stage) const {
    const size_t own = runs_[stage]->processor;
    double neighbours = 0;
    double prompts = 0;
    for (const auto& run : runs_) {
      if (!run || run->processor == own) continue;
      const double part = 1.0 / static_cast<double>(runs_on(run->processor));
      neighbours += part;
      prompts += run->job.shape.decode_count > 0 ? 0 : part;
    }
    const double prompt_share = runs_[stage]->job.shape.decode_count > 0 ? 0 : 1;
    return 1 / (static_cast<double>(runs_on(own)) * contention_.slowdown(prompt_share, neighbours, prompts));
  }

  const Contention contention_;
  double now_us_ = 0;
  std::array<std::deque<Job>, kStages> waiting_;
  std::array<std::optional<Run>, kStages> runs_;
};

CostModel known_costs() {
  CostModel costs;
  for (uint32_t stage = 0; stage < kStages; ++stage) {
    for (uint32_t times = 1; times <= 8; ++times) {
      BatchShape prompt;
      prompt.add_prefill(0, kPromptTokens * times);
      BatchShape decode;
      for (uint32_t i = 0; i < times; ++i) decode.add_decode(10);
      for (const BatchShape& shape : {prompt, decode}) costs.calibrate(StageId(stage), shape, kCost.predict_us(shape));
    }
  }
  return costs;
}

/// Returns the contention that the plans find on a machine with this true contention.
Contention found_of(const Contention& truth) {
  const ContentionProfiler::Shapes shapes{.prompt_tokens = kPromptTokens, .decode_count = 4, .decode_prompt = 4};
  ContentionProfiler together(shapes, kStages, kStages, {kProcessors, 1, {}});
  DummySequences sequences(16, 100);
  Machine machine(truth);
  uint64_t next = 0;
  size_t in_flight = 0;
  while (in_flight > 0 || !together.finished()) {
    while (!together.finished() && in_flight < kStages && (in_flight == 0 || together.allows_overlap())) {
      const Plan plan = together.next(next, sequences);
      machine.add(next++, shape_of(plan));
      ++in_flight;
    }
    BatchShape shape;
    const StageReport report = machine.next(shape);
    together.record(report, shape);
    if (report.stage == StageId(kStages - 1)) --in_flight;
  }
  return together.contention(known_costs());
}

}  // namespace

TEST_CASE("unevenly shared processors are not contention") {
  const Contention found = found_of({});
  REQUIRE(found.prompt_by_prompt < 0.02);
  REQUIRE(found.prompt_by_other < 0.02);
  REQUIRE(found.other_by_prompt < 0.02);
  REQUIRE(found.other_by_other < 0.02);
}

TEST_CASE("what they do disturb each other by is found all the same") {
  const Contention truth{0.4, 0.15, 0.3, 0.6};
  const Contention found = found_of(truth);
  REQUIRE(found.prompt_by_prompt == Approx(truth.prompt_by_prompt).margin(0.05));
  // Such processors do not tell which of the two it was; a load of both kinds loses about their sum.
  REQUIRE(found.prompt_by_other + found.other_by_prompt ==
          Approx(truth.prompt_by_other + truth.other_by_prompt).margin(0.1));
  REQUIRE(found.other_by_other == Approx(truth.other_by_other).margin(0.05));
}

TEST_CASE("dummy sequences decode different tokens") {
  constexpr uint32_t kSequences = 16;
  DummySequences sequences(16, 100);
  Plan prompts;
  Plan step;
  for (uint32_t slot = 0; slot < kSequences; ++slot) {
    sequences.open(prompts, 20);
    sequences.append(prompts, slot, 20);
  }
  for (uint32_t slot = 0; slot < kSequences; ++slot) sequences.append(step, slot, 1);
  REQUIRE(step.tokens.size() == kSequences);
  std::ranges::sort(step.tokens);
  REQUIRE(std::ranges::adjacent_find(step.tokens) == step.tokens.end());
  REQUIRE(std::ranges::all_of(prompts.tokens, [](TokenId token) { return token >= 0 && token < 100; }));
}
