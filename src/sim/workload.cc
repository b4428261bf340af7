#include "sim/workload.h"

#include <algorithm>
#include <cmath>

#include "base/random.h"

namespace millrace::sim {

std::vector<Arrival> make_workload(const WorkloadOptions& options) {
  std::vector<Arrival> arrivals(options.requests);
  uint64_t draws = 0;
  const auto dice = [&] { return uniform_at(options.seed, draws++); };
  const auto vary = [&](uint32_t length) {
    const double factor = 1 + options.spread * (2 * dice() - 1);
    return std::max(1u, static_cast<uint32_t>(std::lround(length * factor)));
  };
  double now = 0;
  for (Arrival& arrival : arrivals) {
    if (options.rate_per_s > 0) now += -std::log(1 - dice()) / options.rate_per_s;
    arrival.at_s = now;
    arrival.is_long = dice() < options.long_share;
    arrival.input_length = vary(arrival.is_long ? options.long_input_length : options.input_length);
    arrival.output_length = vary(options.output_length);
  }
  return arrivals;
}

}  // namespace millrace::sim
