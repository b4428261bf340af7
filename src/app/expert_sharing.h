#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/collective/shared_experts.h"
#include "model/fingerprint.h"
#include "sched/ring/epoch_exchange.h"
#include "sched/steps/step_group.h"

namespace millrace::cluster {
class Coordinator;
}  // namespace millrace::cluster

namespace millrace::app {

/// What the rings of this process need to divide the experts of their model among them and the rings of other processes
/// (--enable-ep): the common epochs, and per epoch the exchanges of all stages. Thread-safe; outlives the rings.
class ExpertSharing {
 public:
  virtual ~ExpertSharing() = default;
  [[nodiscard]] virtual sched::StepEpochs& epochs() = 0;
  /// Returns the part of a ring of this process in the exchange, which lives as long as this object. `nodes` builds the
  /// ring where it has several nodes, and connects their ranks; null: all of its ranks are here. `contents`: what
  /// stored pages of such a ring follow from; nothing: there is no store.
  [[nodiscard]] virtual sched::EpochExchange& exchange(int32_t ring, cluster::Coordinator* nodes,
                                                       std::optional<model::RingContents> contents) = 0;
  /// Returns the fingerprint that names stored pages in the epoch that `ring` has begun, where rings of other processes
  /// have a part in it; else nothing.
  [[nodiscard]] virtual std::string page_fingerprint(int32_t /*ring*/) { return {}; }
  /// Returns a rank's end of the exchange in the epoch that `ring` has begun, where all of its ranks are here. The end
  /// outlives neither `this` nor `backend`.
  [[nodiscard]] virtual std::unique_ptr<tensor::ExpertExchange> join(int32_t ring, StageId stage, uint32_t rank,
                                                                     tensor::Backend& backend) = 0;
};

/// The sharing of rings that are all in this process: their ranks meet in memory.
class LocalSharing final : public ExpertSharing {
 public:
  LocalSharing(const comm::SharedExperts::Shape& shape, uint64_t lookahead);
  ~LocalSharing() override;

  [[nodiscard]] sched::StepEpochs& epochs() override { return steps_; }
  [[nodiscard]] sched::EpochExchange& exchange(int32_t ring, cluster::Coordinator* nodes,
                                               std::optional<model::RingContents> contents) override;
  [[nodiscard]] std::unique_ptr<tensor::ExpertExchange> join(int32_t ring, StageId stage, uint32_t rank,
                                                             tensor::Backend& backend) override;

 private:
  class Part;
  [[nodiscard]] std::shared_ptr<comm::SharedExperts> exchange_of(uint64_t epoch);
  void end_exchange(uint64_t epoch, int32_t ring, const std::string& reason);

  const comm::SharedExperts::Shape shape_;
  sched::StepGroup steps_;
  std::vector<std::unique_ptr<Part>> parts_;  // [rings]
  std::mutex mutex_;
  uint64_t epoch_ = 0;                             // of exchange_; guarded by mutex_, as the next
  std::shared_ptr<comm::SharedExperts> exchange_;  // of the newest epoch that a ring has joined
};

}  // namespace millrace::app
