#pragma once

#include <cstdint>
#include <vector>

namespace millrace::sim {

struct WorkloadOptions {
  uint32_t requests = 16;
  double rate_per_s = 0;           ///< Poisson arrivals; 0: all at once
  uint32_t input_length = 131072;
  uint32_t output_length = 1;
  double spread = 0;               ///< lengths vary by up to this part to either side
  double long_share = 0;           ///< part of the requests that have long_input_length instead
  uint32_t long_input_length = 131072;
  uint64_t seed = 0;
};

struct Arrival {
  double at_s = 0;
  uint32_t input_length = 1;
  uint32_t output_length = 1;
  bool is_long = false;
};

/// In order of arrival; the same for equal options.
[[nodiscard]] std::vector<Arrival> make_workload(const WorkloadOptions& options);

}  // namespace millrace::sim
