#pragma once

#include <memory>
#include <vector>

#include "async/task_group.h"
#include "async/virtual_runtime.h"
#include "sched/head.h"
#include "sched/stage_loop.h"
#include "sim/simulated_runner.h"

namespace millrace::sim {

struct SimulatedRingOptions {
  uint32_t stage_count = 1;
  SimulatedModel model;
  sched::HeadOptions head;
  std::vector<SimulatedCost> costs;                       ///< per stage; the last one serves the rest
  std::function<void(StageId)> fault;                     ///< asked before each run of a stage; may throw
};

/// The production head and stage loops over simulated runners, each on its own virtual thread of one world.
/// Construct, spawn clients, let the world run, stop(), let it run to the end.
class SimulatedRing {
 public:
  SimulatedRing(async::VirtualWorld& world, SimulatedRingOptions options);
  ~SimulatedRing();

  [[nodiscard]] sched::Head& head() { return *head_; }
  void stop() { head_->stop(); }
  /// True when all loops have ended.
  [[nodiscard]] bool stopped() const;

 private:
  struct Part {
    explicit Part(async::Runtime& its_runtime) : runtime(its_runtime), tasks(its_runtime) {}
    async::Runtime& runtime;
    async::TaskGroup tasks;
    std::unique_ptr<sched::StageLoop> stage;
  };
  std::vector<std::unique_ptr<Part>> parts_;  // the head's first, then the stages'
  std::unique_ptr<sched::Head> head_;
};

}  // namespace millrace::sim
