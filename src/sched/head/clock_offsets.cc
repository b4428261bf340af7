#include "sched/head/clock_offsets.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <numeric>

#include "base/check.h"

namespace millrace::sched {
namespace {

/// Clocks drift apart by about 50 µs a second at most, which is short against a plan's time even after ten seconds.
constexpr int64_t kPeriodNs = 5'000'000'000;
constexpr int64_t kUnseen = std::numeric_limits<int64_t>::max();

}  // namespace

ClockOffsets::ClockOffsets(size_t stage_count)
    : previous_minima_(stage_count + 1, kUnseen), current_minima_(stage_count + 1, kUnseen), offsets_(stage_count) {}

void ClockOffsets::observe(int64_t sent_ns, const std::vector<StageReport>& reports, int64_t output_ns) {
  CHECK(reports.size() == offsets_.size());
  if (!has_samples_ || sent_ns - period_begin_ > kPeriodNs) {
    previous_minima_ = current_minima_;
    std::ranges::fill(current_minima_, kUnseen);
    period_begin_ = sent_ns;
    has_samples_ = true;
  }
  bool smaller = false;
  const auto see = [&](size_t hop, int64_t difference) {
    smaller |= difference < std::min(current_minima_[hop], previous_minima_[hop]);
    current_minima_[hop] = std::min(current_minima_[hop], difference);
  };
  see(0, reports.front().plan_ns - sent_ns);
  for (size_t s = 1; s < reports.size(); ++s) see(s, reports[s].plan_ns - reports[s - 1].plan_ns);
  see(reports.size(), output_ns - reports.back().end_ns);
  if (smaller || period_begin_ == sent_ns) refresh();
}

void ClockOffsets::refresh() {
  std::vector<int64_t> shortest(current_minima_.size());
  for (size_t hop = 0; hop < shortest.size(); ++hop)
    shortest[hop] = std::min(current_minima_[hop], previous_minima_[hop]);
  const int64_t around = std::accumulate(shortest.begin(), shortest.end(), int64_t{0});
  const auto per_hop = around / static_cast<int64_t>(shortest.size());
  int64_t offset = 0;
  for (size_t s = 0; s < offsets_.size(); ++s) {
    offset += shortest[s] - per_hop;
    offsets_[s] = std::abs(offset) <= std::max<int64_t>(around, 0) ? 0 : offset;
  }
}

}  // namespace millrace::sched
