#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "async/virtual_runtime.h"
#include "sched/in_process_ring.h"
#include "sim/simulated_runner.h"

namespace millrace::sim {

struct SimulatedRingOptions {
  uint32_t stage_count = 1;
  SimulatedModel model;
  sched::HeadOptions head;
  std::vector<SimulatedCost> costs;      ///< per stage; the last one serves the rest
  std::function<void(StageId)> fault;    ///< asked before each run of a stage; may throw
};

/// The production loops over simulated runners, each on a virtual thread of its own in `world`, started. The world
/// outlives the ring.
[[nodiscard]] std::unique_ptr<sched::InProcessRing> make_simulated_ring(async::VirtualWorld& world,
                                                                        const SimulatedRingOptions& options);

}  // namespace millrace::sim
