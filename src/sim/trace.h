#pragma once

#include <string>
#include <vector>

#include "async/runtime.h"
#include "base/ids.h"

namespace millrace::sim {

/// One run of a plan on a stage.
struct TraceSpan {
  StageId stage;
  PlanId plan;
  async::TimePoint start;
  async::TimePoint end;
  size_t token_count = 0;
};

/// What every stage did when.
class Trace {
 public:
  void add(const TraceSpan& span) { spans_.push_back(span); }
  [[nodiscard]] const std::vector<TraceSpan>& spans() const { return spans_; }
  /// Seconds that all stages together computed from `since` on.
  [[nodiscard]] double busy_s(async::TimePoint since) const;
  /// In the trace event format of Chrome and Perfetto: a row per stage.
  [[nodiscard]] std::string to_json() const;

 private:
  std::vector<TraceSpan> spans_;
};

}  // namespace millrace::sim
