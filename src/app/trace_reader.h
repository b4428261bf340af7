#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "sched/plan/plan_record.h"

namespace millrace::app {

/// The content of a trace of /start_profile.
struct RecordedRing {
  size_t stage_count = 0;
  size_t window = 0;
  uint64_t lost_plans = 0;
  bool complete = true;                    ///< false: the file ends early, as when the server was killed
  std::vector<sched::PlanRecord> records;  ///< in order of epoch and plan, each with every stage's times
};

/// Parses the text of a trace. Errors: kData, when it is not JSON or not such a trace.
[[nodiscard]] Result<RecordedRing> read_trace(std::string text);

}  // namespace millrace::app
