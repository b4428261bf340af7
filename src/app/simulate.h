#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"
#include "sim/experiment.h"

namespace CLI {
class App;
}

namespace millrace::app {

/// `millrace simulate`. Lists make a sweep over every combination; of those that are empty simulate() fills in what is
/// usual, or with `sweep` what is worth a look.
struct SimulateFlags {
  std::filesystem::path cluster;
  bool sweep = false;
  std::vector<int32_t> pp_sizes;
  std::vector<std::string> chunkings;
  std::vector<uint32_t> chunk_sizes;
  std::vector<double> smoothings;
  std::vector<int32_t> async_batch_depths{0};
  std::string policy = "fcfs";
  bool plain_batch_queue = false;  ///< decode is not spread over the window
  sim::WorkloadOptions workload;
  std::filesystem::path requests;  ///< of bench/load, instead of workload's; empty: none
  double client_latency_ms = 1;    ///< with a limit of concurrency: Workload::client_latency_s
  sim::ServiceGoal goal;
  std::filesystem::path result_file;  ///< the table as JSON; empty: none
  std::filesystem::path plot;         ///< empty: none
  std::filesystem::path trace;        ///< of the last combination; empty: none
  std::string plot_x = "pp";          ///< pp, chunk, smoothing
};

/// Declares the flags on the subcommand.
void add_simulate_flags(CLI::App& command, SimulateFlags& flags);

/// Runs the sweep and prints a table; writes the plot and the trace that were asked for. Errors name the file or flag.
[[nodiscard]] Result<void> simulate(const SimulateFlags& flags);

}  // namespace millrace::app
