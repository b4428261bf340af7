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
  uint32_t prefix_length = 0;  ///< tokens before the input, which the requests of a group share
  uint32_t prefix_count = 8;   ///< groups; each request belongs to a random one
  double spread = 0;           ///< lengths vary by up to this share in both directions
  double long_share = 0;       ///< share of requests with long_input_length instead
  uint32_t long_input_length = 131072;
  uint32_t max_concurrency = 0;  ///< requests in flight; further ones wait for an end; 0: no limit
  uint64_t seed = 0;
};

struct RequestArrival {
  double at_s = 0;
  uint32_t input_length = 1;  ///< including the prefix
  uint32_t output_length = 1;
  bool is_long = false;
  uint32_t prefix_length = 0;  ///< tokens that all requests of the group begin with
  uint32_t prefix_group = 0;
};

struct Workload {
  std::vector<RequestArrival> arrivals;  ///< in order
  uint32_t max_concurrency = 0;          ///< as in WorkloadOptions
  double client_latency_s = 0;           ///< with it: from a request's last token to the next request's being queued
};

/// Makes a workload; equal options give equal workloads.
[[nodiscard]] Workload make_workload(const WorkloadOptions& options);

/// Reads the requests of a bench/load run from its result file, with their lengths and order. A run with a rate gives
/// the times at which requests were due (`due_times`, or else sent), another run those at which they were sent. In a
/// closed loop (a concurrency limit and no rate) later requests start when another ends. Errors name the file and the
/// field.
[[nodiscard]] Result<Workload> load_workload(const std::filesystem::path& result_file);

}  // namespace millrace::sim
