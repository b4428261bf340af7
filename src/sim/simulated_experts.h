#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "async/virtual_runtime.h"
#include "sched/ring/epoch_exchange.h"
#include "sim/simulated_collective.h"
#include "sim/simulated_steps.h"
#include "tensor/expert_exchange.h"

namespace millrace::sim {

/// What simulated rings share that divide the experts of their model among them: the steps, and the exchanges of each
/// common epoch in virtual time. All rings have the same shape. Owned by a test; outlives the rings.
class SimulatedExperts {
 public:
  SimulatedExperts(uint32_t ring_count, uint32_t rank_count, uint64_t lookahead, VirtualCollectiveOptions options);

  ~SimulatedExperts();
  /// Puts all rings but the first into processes of their own, before the first ring is made: they step by messages on
  /// links with these options.
  void divide(async::VirtualWorld& world, const SimulatedLinkOptions& links);
  /// Returns the connection of a ring that is in another process than the first.
  [[nodiscard]] SimulatedSteps& connection(uint32_t ring) { return *connections_[ring - 1]; }
  [[nodiscard]] bool is_divided() const { return !connections_.empty(); }
  /// Ends the connections between the processes.
  void stop();

  /// Adds the next ring, whose ranks have these runtimes, stage by stage. Returns its number.
  [[nodiscard]] uint32_t add_ring(std::vector<async::Runtime*> runtimes);
  [[nodiscard]] sched::StepEpochs& epochs(uint32_t ring);
  [[nodiscard]] sched::EpochExchange& exchange(uint32_t ring);
  /// Returns the end of a rank in the epoch that its ring has begun.
  [[nodiscard]] std::unique_ptr<tensor::ExpertExchange> join(uint32_t ring, StageId stage, uint32_t rank);

 private:
  friend class SimulatedExpertExchange;
  struct Epoch;
  class Part;
  void end_exchange(uint64_t epoch, int32_t ring, const std::string& reason);
  [[nodiscard]] std::shared_ptr<Epoch> epoch_of(uint64_t number);

  const uint32_t ring_count_;
  const uint32_t rank_count_;
  const VirtualCollectiveOptions options_;
  std::vector<std::vector<async::Runtime*>> runtimes_;  // [rings][stages · ranks]
  std::shared_ptr<Epoch> newest_;
  std::vector<std::unique_ptr<Part>> parts_;  // [rings]
  sched::StepGroup steps_;
  std::vector<std::unique_ptr<SimulatedSteps>> connections_;  // [rings - 1] where the rings are divided
};

/// One rank's end. A virtual thread cannot block, so runners call begin() and check(), which suspend, and never the
/// calls of the interface.
class SimulatedExpertExchange final : public tensor::ExpertExchange {
 public:
  SimulatedExpertExchange(SimulatedExperts& sharing, std::shared_ptr<SimulatedExperts::Epoch> epoch, uint32_t ring,
                          uint32_t rank, SimulatedCollective& end);

  /// Begins a step with `rows` rows of this ring. Returns whether any ring has rows.
  [[nodiscard]] asio::awaitable<bool> begin(uint64_t step, size_t rows);
  /// Lets all ranks compute their part of a layer's experts for the rows of all rings. Returns, per row of this ring,
  /// how the result differs from that of a ring with all experts: zeros.
  [[nodiscard]] asio::awaitable<std::vector<uint64_t>> differences(int32_t layer, std::vector<uint64_t> hidden);

  [[nodiscard]] tensor::RankPosition position() const override { return end_.position(); }
  [[nodiscard]] bool begin_step(uint64_t step, bool has_rows) override;
  [[nodiscard]] int64_t dispatch(tensor::Matrix x, tensor::Matrix router_logits, tensor::Matrix all_x,
                                 tensor::Matrix all_logits) override;
  void combine(tensor::Matrix all_sums, tensor::Matrix sums) override;
  void abort(const std::string& reason) override;

 private:
  [[nodiscard]] asio::awaitable<std::vector<uint64_t>> sum(uint64_t what, std::vector<uint64_t> values);

  SimulatedExperts& experts_;
  const std::shared_ptr<SimulatedExperts::Epoch> epoch_;
  const uint32_t ring_;
  const uint32_t rank_;
  SimulatedCollective& end_;
  uint64_t step_ = 0;
  size_t first_row_ = 0;  // of this ring among the rows of all
  size_t row_count_ = 0;  // of all rings
};

}  // namespace millrace::sim
