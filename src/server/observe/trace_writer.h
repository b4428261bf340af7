#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sched/plan/plan_record.h"

namespace millrace::server {

/// Writes plan records in Chrome's trace event format, a JSON array of events that Perfetto and chrome://tracing open.
/// The head has one row. Each stage has rows for its work, its waits, and the link that leads to it. Each rank after
/// the leader has a row for its work. Used by one thread. docs/observing.md describes the events; app/trace_report.cc
/// reads them back.
class TraceWriter {
 public:
  /// Times are written in microseconds since the first record was scheduled.
  TraceWriter(size_t stage_count, size_t window, size_t rank_count = 1);
  /// Opens the array and names the rows.
  void begin(std::string& out);
  void add(std::string& out, const sched::PlanRecord& record);
  /// Closes the array; `lost` counts the records that were overwritten before they could be written.
  void end(std::string& out, uint64_t lost);

 private:
  [[nodiscard]] size_t lane_row(size_t lane) const;
  [[nodiscard]] size_t compute_row(size_t stage, size_t rank) const;
  [[nodiscard]] size_t wait_row(size_t stage) const;
  void name_row(std::string& out, size_t row, const std::string& name);
  void add_head(std::string& out, const sched::PlanRecord& record) const;
  void add_stage(std::string& out, const sched::PlanRecord& record, size_t stage) const;
  void add_lane(std::string& out, const sched::PlanRecord& record, size_t lane, int64_t left_ns, int64_t arrived_ns);

  const size_t stage_count_;
  const size_t window_;
  const size_t rank_count_;
  int64_t origin_ns_ = 0;
  bool any_ = false;
  std::vector<int64_t> lane_free_ns_;  // [stage_count + 1] the arrival before: transfers on a lane are drawn in a row
};

}  // namespace millrace::server
