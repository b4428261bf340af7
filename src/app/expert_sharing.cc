#include "app/expert_sharing.h"

#include "base/check.h"

namespace millrace::app {

ExpertSharing::ExpertSharing(const comm::SharedExperts::Shape& shape, uint64_t lookahead)
    : shape_(shape),
      steps_(static_cast<uint32_t>(shape.ring_count), lookahead,
             [this](uint64_t epoch, int32_t ring, const std::string& reason) { end_exchange(epoch, ring, reason); }) {}

std::unique_ptr<tensor::ExpertExchange> ExpertSharing::join(uint64_t epoch, int32_t ring, StageId stage, uint32_t rank,
                                                            tensor::Backend& backend) {
  return comm::SharedExperts::join(exchange_of(epoch), static_cast<int32_t>(stage.value()), ring,
                                   static_cast<int32_t>(rank), backend);
}

/// Returns the exchanges of an epoch, which the first ring makes. The rings have all left the epochs before.
std::shared_ptr<comm::SharedExperts> ExpertSharing::exchange_of(uint64_t epoch) {
  const std::lock_guard lock(mutex_);
  CHECK(epoch >= epoch_, "epoch {} is joined after epoch {}", epoch, epoch_);
  if (epoch > epoch_) {
    epoch_ = epoch;
    exchange_ = std::make_shared<comm::SharedExperts>(
        shape_, [this, epoch](int32_t ring, const std::string& reason) { steps_.end_epoch(epoch, ring, reason); });
  }
  return exchange_;
}

/// Ends the ranks' exchanges with the steps, also for ranks that join them later.
void ExpertSharing::end_exchange(uint64_t epoch, int32_t ring, const std::string& reason) {
  exchange_of(epoch)->abort(ring, reason);
}

}  // namespace millrace::app
