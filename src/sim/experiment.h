#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sched/scheduler/chunking.h"
#include "sched/plan/plan_record.h"
#include "sched/scheduler/queue_policy.h"
#include "sim/cluster.h"
#include "sim/workload.h"

namespace millrace::sim {

/// The settings of a run of a described cluster.
struct ExperimentConfig {
  int32_t pp_size = 1;
  int32_t async_batch_depth = 0;
  sched::Chunking chunking = sched::Chunking::kFixed;
  uint32_t chunk_size = 8192;
  double smoothing = 0.75;
  sched::QueuePolicy policy = sched::QueuePolicy::kFcfs;
  bool spread_decodes = true;
  int32_t tp_size = 0;  ///< ranks per stage; 0: as described
};

struct ServiceGoal {
  double ttft_s = 0;  ///< 0: none
  double tpot_s = 0;
};

/// The outcome of one request.
struct RequestResult {
  bool ok = false;
  bool is_long = false;
  double ttft_s = 0;
  double tpot_s = 0;           ///< 0 with one token
  double end_s = 0;            ///< after the workload's start
  uint32_t cached_tokens = 0;  ///< of the prompt
  std::optional<Error> error;  ///< set if the request failed
};

struct ExperimentResult {
  std::vector<RequestResult> requests;  ///< in the order of the workload
  double makespan_s = 0;                ///< workload's start to last token
  double input_tokens_per_s = 0;        ///< including tokens found in the cache
  double cached_share = 0;              ///< of the input tokens
  double output_tokens_per_s = 0;
  double bubble_ratio = 0;  ///< share of the stages' time in which they computed nothing
  double profile_s = 0;     ///< until the ring was ready
  uint64_t plans = 0;
  uint64_t preemptions = 0;
  uint64_t events = 0;  ///< steps of virtual threads, including the profile at start

  /// Returns the `quantile` (0 to 1) over the requests that succeeded; with `is_long`, only over long or short ones.
  [[nodiscard]] double ttft_s(double quantile, std::optional<bool> is_long = {}) const;
  [[nodiscard]] double tpot_s(double quantile) const;
  [[nodiscard]] double mean_ttft_s() const;
  [[nodiscard]] double mean_tpot_s() const;
  /// Returns the number of requests that failed; all figures leave them out.
  [[nodiscard]] size_t failed_count() const;
  /// Returns the error of the first failed request.
  [[nodiscard]] std::optional<Error> first_error() const;
  /// Returns the requests per second that meet the goal.
  [[nodiscard]] double goodput(const ServiceGoal& goal) const;
};

/// The records of a workload's plans.
struct PlanRecords {
  std::vector<sched::PlanRecord> complete;
  uint64_t lost = 0;  ///< records that the head dropped because there were too many at a time
};

/// Runs the workload through the production loops over the cluster in virtual time. Deterministic. Fills `records`
/// unless it is null. Error: the cluster cannot be divided.
[[nodiscard]] Result<ExperimentResult> run_experiment(const Cluster& cluster, const ExperimentConfig& setting,
                                                      const Workload& workload, uint64_t seed,
                                                      PlanRecords* records = nullptr);

}  // namespace millrace::sim
