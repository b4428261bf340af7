#pragma once

#include <array>
#include <deque>
#include <mutex>
#include <optional>
#include <vector>

#include "sched/head/clock_offsets.h"
#include "sched/scheduler/cost_model.h"
#include "sched/plan/plan_record.h"
#include "sched/head/transit.h"

namespace millrace::sched {

/// What one stage has done over some time.
struct StageTotals {
  int64_t busy_ns = 0;
  WaitTimes wait;
  [[nodiscard]] double bubble_ratio() const;  ///< of the time with requests; 0 when there was none
};

/// A link of the ring: link i leads to stage i, the last one back to the head.
struct LinkTotals {
  uint64_t messages = 0;
  uint64_t bytes = 0;
  uint64_t timed = 0;  ///< transfers that latency_ns sums: activations; on the outer links the plan and the output
  int64_t latency_ns = 0;
};

/// Sums over some time.
struct RingTotals {
  explicit RingTotals(size_t stage_count = 0) : stages(stage_count), links(stage_count + 1) {}
  uint64_t plans = 0;  ///< with slices, that have come back
  uint64_t prefill_tokens = 0;
  uint64_t decode_tokens = 0;
  int64_t schedule_ns = 0;          ///< of the head: making and sending plans
  int64_t book_ns = 0;              ///< of the head: booking and delivering outputs
  int64_t in_use_ns = 0;            ///< time with plans in flight
  int64_t occupied_ns = 0;          ///< that time multiplied by their number
  std::vector<StageTotals> stages;  // [stage_count]
  std::vector<LinkTotals> links;    // [stage_count + 1]
  RingTotals& operator+=(const RingTotals& other);
  [[nodiscard]] double occupancy() const;  ///< mean number of plans in flight while there are any
};

/// Bounds in seconds of the histogram of the time from sending a plan to having its output.
inline constexpr std::array<double, 14> kRingLatencyBounds = {.0001, .00025, .0005, .001, .0025, .005, .01,
                                                              .025,  .05,    .1,    .25,  .5,    1,    2.5};

/// Bounds of the histogram of the tokens of a micro-batch; those of vLLM.
inline constexpr std::array<uint64_t, 13> kTokenCountBounds = {1,   8,    16,   32,   64,   128,  256,
                                                               512, 1024, 2048, 4096, 8192, 16384};

struct RingSnapshot {
  size_t stage_count = 0;
  size_t window = 0;
  uint32_t in_flight = 0;
  uint64_t epochs = 0;  ///< rings that have been attached
  RingTotals since_start;
  RingTotals profile;  ///< of the plans that timed the stages at the start, which no other has
  RingTotals recent;
  int64_t recent_ns = 0;              ///< the time that `recent` covers: RingStats::kRecentNs or less
  std::vector<int64_t> occupancy_ns;  // [window + 1] time with so many plans in flight
  std::array<uint64_t, kRingLatencyBounds.size() + 1> latency_counts{};
  int64_t latency_sum_ns = 0;
  std::array<uint64_t, kTokenCountBounds.size() + 1> token_counts{};  ///< plans by their prompt and decode tokens
};

/// What the head knows when it sends a plan.
struct PlanSent {
  int64_t schedule_ns = 0;  ///< it began to make the plan
  int64_t sent_ns = 0;
  uint32_t running = 0;
  uint32_t waiting = 0;
  uint64_t free_pages = 0;
  uint64_t bytes = 0;    ///< of the message
  bool profile = false;  ///< it times the stages, and serves no request
};

/// What micro-batches cost as far as the head has learnt it, and what bounds them.
struct RingCosts {
  /// Alone, at the speed of the last timings; empty until something is known of every stage.
  std::vector<CostCoefficients> stages;  // [stage_count]
  /// Of stages whose refit is of no use now: what was known before stands for it.
  std::vector<StageId> fallbacks;
  std::vector<double> relative_errors;  // [stage_count] mean |measured / predicted - 1| lately
  uint32_t page_size = 0;
  uint32_t page_count = 0;
  uint32_t max_running = 0;
  uint32_t context_length = 0;
  uint32_t processors = 0;     ///< that all stages share; 0: unknown, or several machines
  uint32_t stage_threads = 1;  ///< that a stage computes with, where processors is not 0
  Contention contention;       ///< between stages that compute at the same time
};

/// Watches a ring: the head's thread tells it what happens, any thread reads. A plan's record is complete when the
/// reports of all stages are there, which is up to two turns of the ring after its output. Owned by the head.
class RingStats {
 public:
  static constexpr int64_t kRecentNs = 10'000'000'000;
  static constexpr size_t kMaxRecords = 4096;  ///< complete records kept for the page and the profile

  RingStats(size_t stage_count, size_t window);

  // On the head's thread. Times are ns on the head's clock.
  void ring_attached(RingEpoch epoch, int64_t now_ns);
  void ring_broken(int64_t now_ns);
  void request_arrived(int64_t at_ns);
  /// Nothing can be scheduled although the window has room.
  void starved() { starved_ = true; }
  void plan_sent(const Plan& plan, const PlanSent& sent);
  void output_booked(const PlanOutput& output, uint64_t bytes, int64_t arrived_ns, int64_t booked_ns);

  /// How long a plan is under way besides its time in the stages: the shortest of the last seconds, 0 until known.
  [[nodiscard]] double transit_us() const { return transit_.shortest_us(); }

  /// Now and then: `costs` are what costs() gives from now on.
  void set_costs(RingCosts costs);

  // On any thread.
  [[nodiscard]] RingCosts costs() const;
  [[nodiscard]] RingSnapshot snapshot(int64_t now_ns) const;
  /// The newest complete records whose number is above `after`, at most `limit` of them, oldest first.
  [[nodiscard]] std::vector<PlanRecord> records_after(uint64_t after, size_t limit = kMaxRecords) const;
  [[nodiscard]] size_t stage_count() const { return stage_count_; }
  [[nodiscard]] size_t window() const { return window_; }

 private:
  struct Pending {
    PlanRecord record;
    std::vector<StageReport> reports;  // [stage_count], in order once complete
    size_t report_count = 0;
    uint64_t plan_bytes = 0;
    bool profile = false;
    bool has_output = false;
    [[nodiscard]] bool complete() const {
      return has_output && (record.sequences == 0 || report_count == reports.size());
    }
  };
  struct Bucket {
    int64_t second = -1;
    RingTotals totals;
  };

  [[nodiscard]] Pending* find(PlanId plan);
  void add_report(const StageReport& report);
  void complete(Pending& pending, int64_t now_ns);
  void set_spans(Pending& pending) const;
  void count_output(const Pending& pending, const PlanOutput& output, uint64_t output_bytes);
  void count_stages(const Pending& pending, int64_t now_ns);
  void add(const RingTotals& found, bool profile, int64_t now_ns);
  void set_in_flight(uint32_t in_flight, int64_t now_ns, bool profile);
  [[nodiscard]] RingTotals& bucket(int64_t now_ns);

  const size_t stage_count_;
  const size_t window_;

  // On the head's thread.
  RingEpoch epoch_;
  ClockOffsets clocks_;
  Transit transit_;
  std::deque<Pending> pending_;         // sent and not complete, by plan
  std::optional<PlanRecord> previous_;  // the last complete one of this epoch
  int64_t last_request_ns_ = 0;
  int64_t last_output_sent_ns_ = 0;  // the newest output left the last stage
  int64_t in_flight_since_ = 0;
  bool starved_ = false;
  bool output_arrived_ = false;  // since the last request

  mutable std::mutex mutex_;
  RingCosts costs_;  // guarded by mutex_, as all below
  uint32_t in_flight_ = 0;
  uint64_t epochs_ = 0;
  uint64_t next_number_ = 1;
  std::deque<PlanRecord> records_;  // complete ones, at most kMaxRecords
  RingTotals since_start_;
  RingTotals profile_;
  std::array<Bucket, kRecentNs / 1'000'000'000> buckets_;  // one per second
  int64_t attached_ns_ = 0;                                // the first ring
  std::vector<int64_t> occupancy_ns_;
  std::array<uint64_t, kRingLatencyBounds.size() + 1> latency_counts_{};
  int64_t latency_sum_ns_ = 0;
  std::array<uint64_t, kTokenCountBounds.size() + 1> token_counts_{};
};

}  // namespace millrace::sched
