#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "sched/scheduler/cost_model.h"
#include "sim/timed_runner.h"

namespace millrace::sim {

/// A described cluster: what a layer, a stage and the output head cost, what joins the stages, how much they hold.
/// docs/simulation.md describes the file. Times in microseconds per micro-batch.
struct Cluster {
  std::string name;
  int32_t layers = 0;
  sched::CostCoefficients layer;                         ///< of one layer
  sched::CostCoefficients stage;                         ///< of every stage besides its layers: launches, control
  sched::CostCoefficients output_head;                   ///< of the last stage besides
  std::vector<double> slowness;                          ///< factor per stage; the last one serves the rest
  std::vector<sched::CostCoefficients> measured_stages;  ///< whole stages instead of layers: pp_size is their number
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

  /// Errors name the file and the field.
  [[nodiscard]] static Result<Cluster> load(const std::filesystem::path& path);
  [[nodiscard]] static Result<Cluster> parse(const std::string& json);
  /// The stages of a division into `stage_count`, even, the remainder to the later ones. Error: more stages than
  /// layers, or not as many as were measured.
  [[nodiscard]] Result<std::vector<StageCost>> divide(int32_t stage_count) const;

 private:
  [[nodiscard]] Result<std::vector<StageCost>> as_measured(int32_t stage_count) const;
  [[nodiscard]] double slowness_of(size_t index) const;
  void join(std::vector<StageCost>& joined) const;
};

}  // namespace millrace::sim
