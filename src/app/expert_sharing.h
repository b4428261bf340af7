#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "comm/collective/shared_experts.h"
#include "sched/steps/step_group.h"

namespace millrace::app {

/// What the rings of this process share when they divide the experts of their model among them (--enable-ep): the steps
/// and, per common epoch, the exchanges of all stages. Thread-safe; outlives the rings.
class ExpertSharing {
 public:
  ExpertSharing(const comm::SharedExperts::Shape& shape, uint64_t lookahead);

  [[nodiscard]] sched::StepGroup& steps() { return steps_; }
  /// Returns a rank's end of the exchange in a common epoch, which `ring` has joined. The end outlives neither `this`
  /// nor `backend`.
  [[nodiscard]] std::unique_ptr<tensor::ExpertExchange> join(uint64_t epoch, int32_t ring, StageId stage, uint32_t rank,
                                                             tensor::Backend& backend);

 private:
  [[nodiscard]] std::shared_ptr<comm::SharedExperts> exchange_of(uint64_t epoch);
  void end_exchange(uint64_t epoch, int32_t ring, const std::string& reason);

  const comm::SharedExperts::Shape shape_;
  sched::StepGroup steps_;
  std::mutex mutex_;
  uint64_t epoch_ = 0;                             // of exchange_; guarded by mutex_, as the next
  std::shared_ptr<comm::SharedExperts> exchange_;  // of the newest epoch that a ring has joined
};

}  // namespace millrace::app
