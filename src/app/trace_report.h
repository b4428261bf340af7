#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "app/trace_reader.h"

namespace millrace::app {

struct Bubble {
  size_t stage = 0;
  RingEpoch epoch;
  PlanId plan;  ///< the plan that ended it
  int64_t begin_ns = 0;
  sched::WaitTimes wait;
};

/// The use of the stages' time. Per stage, span_ns = busy_ns + wait.total_ns() + unexplained_ns. The last is 0 except
/// for the error of estimated clocks.
struct TraceSummary {
  struct Stage {
    int64_t busy_ns = 0;
    sched::WaitTimes wait;
    int64_t unexplained_ns = 0;
  };
  int64_t span_ns = 0;  ///< from the first plan's sending to the last output, summed over epochs
  size_t epoch_count = 0;
  uint64_t prefill_tokens = 0;
  uint64_t decode_tokens = 0;
  double length_variation = 0;  ///< mean difference of neighbours' lengths on a stage, by the mean length
  double occupancy = 0;         ///< mean plans in flight when one is sent
  int64_t head_ns = 0;          ///< making plans and booking outputs
  std::vector<Stage> stages;    // [stage_count]
  std::vector<Bubble> longest;  ///< longest first; idle time does not count
};

/// Recomputes the waits from the times in the trace (sched/head/bubbles.h).
[[nodiscard]] TraceSummary summarize(RecordedRing ring, size_t longest_count = 10);
/// Returns the summary as text.
[[nodiscard]] std::string format_report(const RecordedRing& ring, const TraceSummary& summary);

/// Returns what `millrace trace FILE` prints. Errors name the file.
[[nodiscard]] Result<std::string> report_trace(const std::filesystem::path& file);

}  // namespace millrace::app
