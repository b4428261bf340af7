#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "sched/head/clock_offsets.h"
#include "sched/head/transit.h"
#include "sched/plan/plan_record.h"
#include "sched/plan/stage_report.h"

namespace millrace::sched {

struct Plan;
struct PlanOutput;

/// What the head knows when it sends a plan.
struct PlanSent {
  int64_t schedule_ns = 0;  ///< when it began to make the plan
  int64_t sent_ns = 0;
  uint32_t running = 0;
  uint32_t waiting = 0;
  uint64_t free_pages = 0;
  uint64_t bytes = 0;    ///< of the message
  bool profile = false;  ///< the plan times the stages and serves no request
};

/// A plan's record together with the reports that it is made from.
struct OpenRecord {
  PlanRecord record;
  std::vector<StageReport> reports;  // [stage_count] of the leaders, in order once complete
  size_t report_count = 0;           // of all ranks
  size_t rank_count = 1;             // of each stage
  uint64_t plan_bytes = 0;
  bool profile = false;
  bool is_step = false;  // that rings with shared experts run together
  bool has_output = false;
  /// Returns whether the output and the reports of all ranks have come; a plan without slices has no reports.
  [[nodiscard]] bool complete() const {
    return has_output && (record.sequences == 0 || report_count == reports.size() * rank_count);
  }
};

/// Matches outputs and stage reports with the plans that the head has sent, and turns each plan into a PlanRecord on
/// the head's clock. Reports may come up to two turns of the ring after the output. Owned by RingStats, on the head's
/// thread.
class PlanRecorder {
 public:
  PlanRecorder(size_t stage_count, size_t rank_count);

  void ring_attached(RingEpoch epoch);
  void ring_broken();
  void request_arrived(int64_t at_ns);
  /// Notes that nothing can be scheduled although the window has room. The next plan's record says so.
  void starved() { starved_ = true; }
  void plan_sent(const Plan& plan, const PlanSent& sent);
  /// Returns the record of the output's plan, valid until the next call; null for a plan that is not known.
  [[nodiscard]] const OpenRecord* output_booked(const PlanOutput& output, int64_t arrived_ns, int64_t booked_ns);
  /// Returns the next complete record of a plan with slices, in the order of the plans; nothing while the oldest is
  /// incomplete. Sets its spans and the causes of its waits.
  [[nodiscard]] std::optional<OpenRecord> take_complete();

  /// Plans with slices whose output has not come.
  [[nodiscard]] uint32_t in_flight() const { return in_flight_; }
  /// Returns the shortest time of the last seconds that a plan spends outside of stages; 0 until known.
  [[nodiscard]] double transit_us() const { return transit_.shortest_us(); }

 private:
  [[nodiscard]] OpenRecord* find(PlanId plan);
  void add_report(const StageReport& report);
  void set_spans(OpenRecord& open) const;

  const size_t stage_count_;
  const size_t rank_count_;  // of each stage
  RingEpoch epoch_;
  ClockOffsets clocks_;
  Transit transit_;
  std::deque<OpenRecord> open_;         // sent and not complete, in the order of the plans
  std::optional<PlanRecord> previous_;  // the last complete one of this epoch
  uint32_t in_flight_ = 0;
  int64_t last_request_ns_ = 0;
  int64_t last_output_sent_ns_ = 0;  // when the newest output left the last stage
  bool starved_ = false;
  bool output_arrived_ = false;  // since the last request
};

}  // namespace millrace::sched
