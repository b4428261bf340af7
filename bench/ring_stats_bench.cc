#include <fmt/format.h>

#include <chrono>

#include "sched/ring_stats.h"

/// What watching costs the head per turn: one plan sent and one output booked, with four stages' reports.
int main() {
  using namespace millrace;
  using namespace millrace::sched;
  constexpr uint32_t kStages = 4;
  constexpr uint64_t kTurns = 200'000;
  RingStats stats(kStages, kStages);
  stats.ring_attached(Generation(1), 0);
  Plan plan;
  for (uint32_t i = 0; i < 8; ++i) plan.slices.push_back({SlotId(i), 100, 1, 0, true, -1, -1});
  PlanOutput output;
  output.reports.resize(kStages);
  const auto begin = std::chrono::steady_clock::now();
  for (uint64_t turn = 0; turn < kTurns; ++turn) {
    const auto now = static_cast<int64_t>(turn) * 1'000'000;
    plan.id = output.id = PlanId(turn);
    stats.plan_sent(plan, {now, now, 8, 0, 100, 400});
    for (uint32_t s = 0; s < kStages; ++s) {
      const int64_t at = now + 100'000 * (s + 1);
      output.reports[s] = {StageId(s), PlanId(turn), now + 10, at, at + 10, at + 90'000, 4096};
    }
    stats.output_booked(output, 400, now + 600'000, now + 600'100);
  }
  const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - begin;
  fmt::print("{:.0f} ns per turn of the head, {} stages\n", taken.count() / static_cast<double>(kTurns), kStages);
  return stats.records_after(0, 1).size() == 1 ? 0 : 1;
}
