#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "async/virtual_runtime.h"
#include "sched/ring/in_process_ring_builder.h"
#include "sched/ring/ring.h"
#include "sched/ring/stepping_ring_builder.h"
#include "sim/simulated_link.h"
#include "sim/simulated_runner.h"

namespace millrace::sim {

/// What hosts the ranks of a simulated ring.
struct RingParts {
  async::Runtime& head;
  std::vector<async::Runtime*> runtimes;                   // [stages · ranks] stage by stage
  std::vector<sched::LocalStages::RunnerFactory> runners;  // [stages · ranks]
  sched::RingConfig config;
};

struct SimulatedRingOptions {
  uint32_t stage_count = 1;
  uint32_t rank_count = 1;  ///< of each stage
  SimulatedModel model;
  sched::HeadOptions head;
  std::vector<SimulatedCost> costs;               ///< per stage; the last one applies to all further stages
  std::function<void(StageId)> fault;             ///< called before each run of a stage's rank; may throw
  std::function<async::Duration(StageId)> stall;  ///< called before each run of a rank: returns how long it hangs
  SimulatedLinkOptions links;
  VirtualCollectiveOptions collectives;            ///< between the ranks of a stage
  std::optional<SimulatedLinkOptions> head_links;  ///< of the two links of the head, if they differ
  /// Makes the page store of a rank for pages of a cache group, if set. `identity` has the group and the page's bytes.
  std::function<std::unique_ptr<cache::PageStore>(async::Runtime&, const cache::StoreIdentity& identity)> make_store;
  /// Makes the runners of stages of one rank, if set, instead of those of `model`.
  std::function<std::unique_ptr<sched::StageRunner>(async::Runtime&, StageId)> make_runner;
  /// Returns the sizes of the pools of an epoch, if set; throws ErrorException when there can be none.
  std::function<cache::PoolSizes(RingEpoch)> pool_sizes;
  /// Makes what hosts the ranks and builds their epochs, if set. Otherwise one process has all of them.
  std::function<std::unique_ptr<sched::RingBuilder>(RingParts)> make_builder;
  SimulatedExperts* experts = nullptr;  ///< shared with other rings; outlives the ring
};

/// The stages of one process, with pools of other sizes in some epochs. Stages of earlier sizes are kept, since timers
/// may still refer to them. Owned by a SimulatedRing.
class ResizingRingBuilder final : public sched::RingBuilder {
 public:
  /// Stages with pools of one size, and the builder of their epochs.
  struct Stages {
    cache::PoolSizes pages;
    std::unique_ptr<sched::LocalStages> stages;  // null where the builder has them
    std::unique_ptr<sched::RingBuilder> builder;
  };
  /// `pool_sizes` may be empty: the sizes stay `first`.
  ResizingRingBuilder(cache::PoolSizes first, std::function<Stages(cache::PoolSizes)> make,
                      std::function<cache::PoolSizes(RingEpoch)> pool_sizes);
  [[nodiscard]] asio::awaitable<sched::RingEnds> build(RingEpoch epoch) override;
  [[nodiscard]] asio::awaitable<void> tear_down(RingEpoch epoch, std::string reason) override;
  /// Does nothing: build() never waits.
  void interrupt() override {}

 private:
  const std::function<Stages(cache::PoolSizes)> make_;
  const std::function<cache::PoolSizes(RingEpoch)> pool_sizes_;
  std::vector<Stages> made_;  // those of the newest epoch last
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
  std::unique_ptr<ResizingRingBuilder> ring_builder_;
  std::unique_ptr<sched::SteppingRingBuilder> stepping_builder_;  // around it, with shared experts
  std::unique_ptr<sched::Ring> ring_;
};

}  // namespace millrace::sim
