#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <vector>

#include "sched/head/ring_stats.h"
#include "sched/plan/plan.h"
#include "sched/plan/plan_output.h"

namespace {

using namespace millrace;
using namespace millrace::sched;

constexpr uint32_t kStages = 4;
constexpr uint64_t kTurns = 200'000;

/// Nanoseconds per turn of the head: one plan sent and one output booked, with every stage's report.
double measure_turns() {
  RingStats stats(kStages, kStages);
  stats.ring_attached(RingEpoch(1), 0);
  Plan plan;
  for (uint32_t i = 0; i < 8; ++i)
    plan.slices.push_back({.slot = SlotId(i), .prefix = 100, .token_count = 1, .sample = true});
  PlanOutput output;
  output.reports.resize(kStages);
  const auto begin = std::chrono::steady_clock::now();
  for (uint64_t turn = 0; turn < kTurns; ++turn) {
    const auto now = static_cast<int64_t>(turn) * 1'000'000;
    plan.id = output.id = PlanId(turn);
    stats.plan_sent(plan, {.schedule_ns = now, .sent_ns = now, .running = 8, .free_pages = 100, .bytes = 400});
    for (uint32_t s = 0; s < kStages; ++s) {
      const int64_t at = now + 100'000 * (s + 1);
      output.reports[s] = {.stage = StageId(s),
                           .plan = PlanId(turn),
                           .plan_ns = now + 10,
                           .input_ns = at,
                           .begin_ns = at + 10,
                           .end_ns = at + 90'000,
                           .sent_bytes = 4096};
    }
    stats.output_booked(output, 400, now + 600'000, now + 600'100);
  }
  const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - begin;
  return taken.count() / static_cast<double>(kTurns);
}

}  // namespace

int main(int argc, char** argv) {
  size_t rounds = 7;
  CLI::App app("ring_stats_bench: what watching costs the head per turn, with the reports of four stages, ns.");
  app.add_option("--rounds", rounds, "rounds, after one that does not count")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  std::vector<double> taken;
  for (size_t round = 0; round <= rounds; ++round) {
    const double nanoseconds = measure_turns();
    if (round > 0) taken.push_back(nanoseconds);
  }
  std::ranges::sort(taken);
  fmt::print("{:.0f} ns [{:.0f}, {:.0f}] per turn of the head, {} stages\n", taken[taken.size() / 2], taken.front(),
             taken.back(), kStages);
}
