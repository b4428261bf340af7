#include "app/expert_sharing.h"

#include <atomic>

#include "base/check.h"

namespace millrace::app {

/// Notes the epoch that a ring is in.
class LocalSharing::Part final : public sched::EpochExchange {
 public:
  asio::awaitable<void> begin(async::Runtime& /*runtime*/, const sched::StepEpochs::Membership& epoch) override {
    epoch_ = epoch.epoch;
    co_return;
  }
  [[nodiscard]] uint64_t epoch() const { return epoch_; }

 private:
  std::atomic<uint64_t> epoch_ = 0;
};

LocalSharing::LocalSharing(const comm::SharedExperts::Shape& shape, uint64_t lookahead)
    : shape_(shape),
      steps_(static_cast<uint32_t>(shape.ring_count), lookahead,
             [this](uint64_t epoch, int32_t ring, const std::string& reason) { end_exchange(epoch, ring, reason); }) {
  for (int32_t ring = 0; ring < shape.ring_count; ++ring) parts_.push_back(std::make_unique<Part>());
}

LocalSharing::~LocalSharing() = default;

sched::EpochExchange& LocalSharing::exchange(int32_t ring, cluster::Coordinator* nodes,
                                             std::optional<model::RingContents> /*contents*/) {
  CHECK(nodes == nullptr, "ring {} has several nodes and shares experts in one process", ring);
  return *parts_[static_cast<size_t>(ring)];
}

std::unique_ptr<tensor::ExpertExchange> LocalSharing::join(int32_t ring, StageId stage, uint32_t rank,
                                                           tensor::Backend& backend) {
  return comm::SharedExperts::join(exchange_of(parts_[static_cast<size_t>(ring)]->epoch()),
                                   static_cast<int32_t>(stage.value()), ring, static_cast<int32_t>(rank), backend);
}

/// Returns the exchanges of an epoch, which the first ring makes. The rings have all left the epochs before.
std::shared_ptr<comm::SharedExperts> LocalSharing::exchange_of(uint64_t epoch) {
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
void LocalSharing::end_exchange(uint64_t epoch, int32_t ring, const std::string& reason) {
  exchange_of(epoch)->abort(ring, reason);
}

}  // namespace millrace::app
