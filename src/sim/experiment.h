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

/// How a described cluster is run.
struct ExperimentConfig {
  int32_t pp_size = 1;
  int32_t async_batch_depth = 0;
  sched::Chunking chunking = sched::Chunking::kFixed;
  uint32_t chunk_size = 8192;
  double smoothing = 0.75;
  sched::QueuePolicy policy = sched::QueuePolicy::kFcfs;
  bool spread_decodes = true;
};

struct ServiceGoal {
  double ttft_s = 0;  ///< 0: none
  double tpot_s = 0;
};

/// What one request saw.
struct RequestResult {
  bool ok = false;
  bool is_long = false;
  double ttft_s = 0;
  double tpot_s = 0;           ///< 0 with one token
  double end_s = 0;            ///< after the workload's start
  uint32_t cached_tokens = 0;  ///< of the prompt
  std::optional<Error> error;  ///< why it is not ok
};

struct ExperimentResult {
  std::vector<RequestResult> requests;  ///< as the workload
  double makespan_s = 0;                ///< workload's start to last token
  double input_tokens_per_s = 0;        ///< with those found in the cache
  double cached_share = 0;              ///< of the input tokens
  double output_tokens_per_s = 0;
  double bubble_ratio = 0;  ///< part of the stages' time in which they computed nothing
  double profile_s = 0;     ///< until the ring was ready
  uint64_t plans = 0;
  uint64_t preemptions = 0;
  uint64_t events = 0;  ///< steps of virtual threads, the start's profile among them

  /// The `quantile` (0 to 1) over the requests that ended well, of those only long or only short when asked.
  [[nodiscard]] double ttft_s(double quantile, std::optional<bool> is_long = {}) const;
  [[nodiscard]] double tpot_s(double quantile) const;
  [[nodiscard]] double mean_ttft_s() const;
  [[nodiscard]] double mean_tpot_s() const;
  /// Requests that ended with an error: all figures are of the others.
  [[nodiscard]] size_t failed_count() const;
  /// What the first of them heard.
  [[nodiscard]] std::optional<Error> first_error() const;
  /// Requests per second that meet the goal.
  [[nodiscard]] double goodput(const ServiceGoal& goal) const;
};

/// What became of the plans of a workload.
struct PlanRecords {
  std::vector<sched::PlanRecord> complete;
  uint64_t lost = 0;  ///< too many at a time for the head to keep them
};

/// Runs the workload through the production loops over the cluster in virtual time. Deterministic. `records`: where
/// the plans' are wanted. Error: the cluster cannot be divided.
[[nodiscard]] Result<ExperimentResult> run_experiment(const Cluster& cluster, const ExperimentConfig& setting,
                                                      const Workload& workload, uint64_t seed,
                                                      PlanRecords* records = nullptr);

}  // namespace millrace::sim
