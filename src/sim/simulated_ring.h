#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "async/virtual_runtime.h"
#include "sched/ring/in_process_ring_builder.h"
#include "sched/ring/ring.h"
#include "sim/simulated_link.h"
#include "sim/simulated_runner.h"

namespace millrace::sim {

struct SimulatedRingOptions {
  uint32_t stage_count = 1;
  SimulatedModel model;
  sched::HeadOptions head;
  std::vector<SimulatedCost> costs;               ///< per stage; the last one applies to all further stages
  std::function<void(StageId)> fault;             ///< called before each run of a stage; may throw
  std::function<async::Duration(StageId)> stall;  ///< called before each run of a stage: returns how long it hangs
  SimulatedLinkOptions links;
  std::optional<SimulatedLinkOptions> head_links;  ///< of the two links of the head, if they differ
  /// Makes the stages' page stores, if set.
  std::function<std::unique_ptr<cache::PageStore>(async::Runtime&, StageId)> make_store;
  /// Makes the stages' runners, if set, instead of those of `model`.
  std::function<std::unique_ptr<sched::StageRunner>(async::Runtime&, StageId)> make_runner;
};

/// Runs the production loops over simulated runners, each on a virtual thread of its own in `world`, which outlives the
/// ring. Owned by a test or an experiment.
class SimulatedRing {
 public:
  SimulatedRing(async::VirtualWorld& world, const SimulatedRingOptions& options);
  [[nodiscard]] sched::Head& head() { return ring_->head(); }
  void stop() { ring_->stop(); }
  [[nodiscard]] bool stopped() const { return ring_->stopped(); }

 private:
  std::unique_ptr<sched::LocalStages> stages_;
  std::unique_ptr<sched::InProcessRingBuilder> ring_builder_;
  std::unique_ptr<sched::Ring> ring_;
};

}  // namespace millrace::sim
