#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/result.h"

namespace millrace::sim {

struct WorkloadOptions {
  uint32_t requests = 16;
  double rate_per_s = 0;  ///< Poisson arrivals; 0: all at once
  uint32_t input_length = 131072;
  uint32_t output_length = 1;
  uint32_t prefix_length = 0;  ///< tokens before those, which requests of one group have in common
  uint32_t prefix_count = 8;   ///< groups; each request is of one drawn at random
  double spread = 0;           ///< lengths vary by up to this part to either side
  double long_share = 0;       ///< part of the requests that have long_input_length instead
  uint32_t long_input_length = 131072;
  uint32_t max_concurrency = 0;  ///< requests under way; more wait for one of them to end; 0: no limit
  uint64_t seed = 0;
};

struct RequestArrival {
  double at_s = 0;
  uint32_t input_length = 1;  ///< with the prefix
  uint32_t output_length = 1;
  bool is_long = false;
  uint32_t prefix_length = 0;  ///< tokens that all of the same group begin with
  uint32_t prefix_group = 0;
};

struct Workload {
  std::vector<RequestArrival> arrivals;  ///< in order
  uint32_t max_concurrency = 0;          ///< as WorkloadOptions
  double client_latency_s = 0;           ///< with it: from a request's last token to the next request's being queued
};

/// The same for equal options.
[[nodiscard]] Workload make_workload(const WorkloadOptions& options);

/// The requests that a run of bench/load sent, from its result file: their lengths, in their order, at the times at
/// which they were due (`due_times`; without them, were sent) if it had a rate, else at which they were sent. In a
/// closed loop (a limit of concurrency and no rate) those behind the first have no time but another's end. Errors name
/// the file and the field.
[[nodiscard]] Result<Workload> load_workload(const std::filesystem::path& result_file);

}  // namespace millrace::sim
