#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "sched/scheduler/cost_model.h"
#include "sim/rank_costs.h"
#include "sim/timed_runner.h"

namespace millrace::sim {

/// A described cluster: the costs of a layer, a stage and the output head; links between stages; sizes of pools.
/// docs/simulation.md describes the file. Costs are microseconds per micro-batch.
struct Cluster {
  std::string name;
  int32_t layers = 0;
  sched::CostCoefficients layer;                         ///< one layer
  sched::CostCoefficients stage;                         ///< every stage in addition to its layers: launches, control
  sched::CostCoefficients output_head;                   ///< the last stage in addition
  std::vector<double> slowness;                          ///< factor per stage; the last applies to the rest
  std::vector<sched::CostCoefficients> measured_stages;  ///< whole stages instead of layers; pp_size is their number
  std::optional<RankCosts> ranks;                        ///< of a stage; none: a stage is one device, or costs as one
  std::optional<sched::SharedMachine> machine;           ///< that all stages compute on; none: each has its own
  double jitter = 0;
  double activation_bytes_per_token = 0;
  double link_bytes_per_second = 0;
  double link_latency_us = 0;
  std::optional<double> head_latency_us;  ///< last stage to first, through the head; none: two links
  uint32_t page_size = 64;
  uint32_t page_count = 0;
  uint32_t max_running = 64;
  uint32_t context_length = 0;

  /// Reads a description. Errors name the file and the field.
  [[nodiscard]] static Result<Cluster> load(const std::filesystem::path& path);
  [[nodiscard]] static Result<Cluster> parse(const std::string& json);
  /// Divides the layers evenly into `stage_count` stages of `tp_size` ranks, 0 for the described number; later stages
  /// get the remainder. Errors: more stages than layers, another number than was measured, or ranks of which nothing is
  /// known.
  [[nodiscard]] Result<std::vector<StageCost>> divide(int32_t stage_count, int32_t tp_size = 0) const;
  /// Returns the ranks of a stage: `tp_size`, or for 0 the described number.
  [[nodiscard]] int32_t ranks_of(int32_t tp_size) const;

 private:
  [[nodiscard]] Result<std::vector<StageCost>> as_measured(int32_t stage_count) const;
  [[nodiscard]] double slowness_of(size_t index) const;
  void join(std::vector<StageCost>& joined, int32_t rank_count) const;
};

}  // namespace millrace::sim
