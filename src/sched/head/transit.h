#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "sched/plan/stage_report.h"

namespace millrace::sched {

/// Measures the time that plans spend outside of stages, on links and in the head. Each stage's part is measured on its
/// own clock, so that clock differences cancel out. Owned by PlanRecorder, on the head's thread.
class Transit {
 public:
  /// Adds one plan: when the head sent it and received its output, and the reports of all stages.
  void observe(int64_t sent_ns, const std::vector<StageReport>& reports, int64_t output_ns) {
    if (sent_ns - period_begin_ > kPeriodNs) {
      older_ns_ = std::exchange(newer_ns_, kUnseen);
      period_begin_ = sent_ns;
    }
    int64_t transit_ns = output_ns - sent_ns;
    for (const StageReport& report : reports) transit_ns -= report.end_ns - report.input_ns;
    newer_ns_ = std::min(newer_ns_, std::max<int64_t>(transit_ns, 0));
  }
  /// Returns the shortest time of the last two periods; 0 without one.
  [[nodiscard]] double shortest_us() const {
    const int64_t shortest = std::min(older_ns_, newer_ns_);
    return shortest == kUnseen ? 0 : static_cast<double>(shortest) * 1e-3;
  }

 private:
  static constexpr int64_t kPeriodNs = 5'000'000'000;
  static constexpr int64_t kUnseen = std::numeric_limits<int64_t>::max();
  int64_t period_begin_ = std::numeric_limits<int64_t>::min() / 2;
  int64_t older_ns_ = kUnseen;
  int64_t newer_ns_ = kUnseen;
};

}  // namespace millrace::sched
