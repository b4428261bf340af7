#include "sched/head/ring_totals.h"

#include <algorithm>

namespace millrace::sched {

double StageTotals::bubble_ratio() const {
  const int64_t waited = wait.bubble_ns();
  return waited == 0 ? 0.0 : static_cast<double>(waited) / static_cast<double>(waited + busy_ns);
}

RingTotals& RingTotals::operator+=(const RingTotals& other) {
  plans += other.plans;
  prefill_tokens += other.prefill_tokens;
  decode_tokens += other.decode_tokens;
  schedule_ns += other.schedule_ns;
  book_ns += other.book_ns;
  in_use_ns += other.in_use_ns;
  occupied_ns += other.occupied_ns;
  for (size_t s = 0; s < stages.size(); ++s) {
    stages[s].busy_ns += other.stages[s].busy_ns;
    stages[s].wait += other.stages[s].wait;
    const std::vector<int64_t>& rank_busy_ns = other.stages[s].rank_busy_ns;
    stages[s].rank_busy_ns.resize(std::max(stages[s].rank_busy_ns.size(), rank_busy_ns.size()));
    for (size_t i = 0; i < rank_busy_ns.size(); ++i) stages[s].rank_busy_ns[i] += rank_busy_ns[i];
  }
  for (size_t i = 0; i < links.size(); ++i) {
    links[i].messages += other.links[i].messages;
    links[i].bytes += other.links[i].bytes;
    links[i].timed += other.links[i].timed;
    links[i].latency_ns += other.links[i].latency_ns;
  }
  return *this;
}

double RingTotals::occupancy() const {
  return in_use_ns == 0 ? 0.0 : static_cast<double>(occupied_ns) / static_cast<double>(in_use_ns);
}

}  // namespace millrace::sched
