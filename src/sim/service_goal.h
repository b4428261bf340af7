#pragma once

namespace millrace::sim {

/// The latencies that a request must meet to count in the goodput.
struct ServiceGoal {
  double ttft_s = 0;  ///< 0: none
  double tpot_s = 0;
};

}  // namespace millrace::sim
