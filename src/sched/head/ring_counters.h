#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "sched/head/plan_recorder.h"
#include "sched/head/ring_totals.h"

namespace millrace::sched {

/// Bounds, in seconds, of the histogram of the time from sending a plan to receiving its output.
inline constexpr std::array<double, 14> kRingLatencyBounds = {.0001, .00025, .0005, .001, .0025, .005, .01,
                                                              .025,  .05,    .1,    .25,  .5,    1,    2.5};

/// Bounds of the histogram of the tokens of a micro-batch; vLLM uses the same.
inline constexpr std::array<uint64_t, 13> kTokenCountBounds = {1,   8,    16,   32,   64,   128,  256,
                                                               512, 1024, 2048, 4096, 8192, 16384};

/// The steps of a ring that shares experts with others.
struct StepCounts {
  uint64_t with_rows = 0;
  uint64_t without_rows = 0;
  uint64_t newest = 0;            ///< number of the last one, in the newest epoch
  uint64_t newest_with_rows = 0;  ///< number of the last one that had rows
  uint64_t in_flight = 0;         ///< those that have not ended
};

/// A copy of all counters at one moment.
struct RingSnapshot {
  size_t stage_count = 0;
  size_t window = 0;
  uint32_t in_flight = 0;
  uint64_t epochs = 0;  ///< rings that have been attached
  StepCounts steps;     ///< with other rings that share experts
  RingTotals since_start;
  RingTotals profile;  ///< of the plans that timed the stages at start, which the other totals leave out
  RingTotals recent;
  int64_t recent_ns = 0;              ///< the time that `recent` covers: RingCounters::kRecentNs or less
  std::vector<int64_t> occupancy_ns;  // [window + 1] time with this many plans in flight
  std::array<uint64_t, kRingLatencyBounds.size() + 1> latency_counts{};
  int64_t latency_sum_ns = 0;
  std::array<uint64_t, kTokenCountBounds.size() + 1> token_counts{};  ///< plans by their prompt and decode tokens
};

/// Sums what a ring does: since the start, over the last seconds, and as histograms. Plain data without a lock: its
/// owner, RingStats, guards it.
class RingCounters {
 public:
  static constexpr int64_t kRecentNs = 10'000'000'000;

  RingCounters(size_t stage_count, size_t window);

  void ring_attached(int64_t now_ns);
  /// Counts a step that begins, by its number in this epoch.
  void add_step(uint64_t step, bool has_rows);
  void end_step() { --steps_.in_flight; }
  void end_all_steps() { steps_.in_flight = 0; }
  /// Adds a plan whose output has been booked.
  void add_output(const OpenRecord& open, const PlanOutput& output, uint64_t output_bytes);
  /// Adds what the stages and links did for a plan whose record is complete.
  void add_stages(const OpenRecord& complete, int64_t now_ns);
  /// Ends the time with the former number of plans in flight. With `profile`, that time counts in no sum.
  void set_in_flight(uint32_t in_flight, int64_t now_ns, bool profile);
  [[nodiscard]] RingSnapshot snapshot(int64_t now_ns) const;

 private:
  struct Bucket {
    int64_t second = -1;
    RingTotals totals;
  };
  void add(const RingTotals& found, bool profile, int64_t now_ns);
  [[nodiscard]] RingTotals& bucket(int64_t now_ns);

  const size_t stage_count_;
  const size_t window_;
  uint32_t in_flight_ = 0;
  int64_t in_flight_since_ = 0;
  uint64_t epochs_ = 0;
  StepCounts steps_;
  int64_t attached_ns_ = 0;  // when the first ring was attached
  RingTotals since_start_;
  RingTotals profile_;
  std::array<Bucket, kRecentNs / 1'000'000'000> buckets_;  // one per second
  std::vector<int64_t> occupancy_ns_;                      // [window + 1]
  std::array<uint64_t, kRingLatencyBounds.size() + 1> latency_counts_{};
  int64_t latency_sum_ns_ = 0;
  std::array<uint64_t, kTokenCountBounds.size() + 1> token_counts_{};
};

}  // namespace millrace::sched
