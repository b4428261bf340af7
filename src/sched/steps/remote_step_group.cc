#include "sched/steps/remote_step_group.h"

#include <utility>

#include "base/check.h"
#include "base/result.h"
#include "sched/steps/step_epoch.h"

namespace millrace::sched {

asio::awaitable<StepEpochs::Membership> RemoteStepGroup::join(uint32_t ring, async::Runtime& runtime,
                                                              comm::RingExperts experts) {
  CHECK(ring == ring_, "ring {} joins in the process of ring {}", ring, ring_);
  const async::Event joined(runtime);
  {
    const std::lock_guard lock(mutex_);
    CHECK(!epoch_ && !joined_, "ring {} joins an epoch before it has left the last one", ring);
    joined_ = joined;
    experts_ = std::move(experts);
    experts_.endpoints = comm::for_others(std::move(experts_.endpoints));
    if (interrupted_) {
      joined.set();
    } else if (send_) {
      send_(JoinEpoch{experts_});
    }
  }
  co_await joined.wait_uncancelled();
  const std::lock_guard lock(mutex_);
  joined_.reset();
  const std::shared_ptr<StepEpoch> epoch = epoch_;
  if (!epoch) throw_error(ErrorCode::kAborted, "interrupted");
  const auto start = [this, epoch](uint64_t step) { send(StepReached{.epoch = epoch->number(), .step = step}); };
  const auto leave = [this, number = epoch->number()](const std::string& reason) {
    end_epoch(number, static_cast<int32_t>(ring_), reason);
  };
  co_return Membership{
      .epoch = epoch->number(), .rings = std::move(rings_), .board = make_board(epoch, ring_, runtime, start, leave)};
}

/// Sends a message about the epoch of the ring, unless its connection is gone.
void RemoteStepGroup::send(const StepMessage& message) {
  const std::lock_guard lock(mutex_);
  if (send_ && is_of_connection_) send_(message);
}

std::shared_ptr<StepEpoch> RemoteStepGroup::epoch_with(uint64_t number) {
  const std::lock_guard lock(mutex_);
  return epoch_ && epoch_->number() == number ? epoch_ : nullptr;
}

void RemoteStepGroup::end(uint32_t ring, const std::string& reason) {
  uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!epoch_) return;
    number = epoch_->number();
  }
  end_epoch(number, static_cast<int32_t>(ring), reason);
}

void RemoteStepGroup::end_epoch(uint64_t epoch, int32_t ring, const std::string& reason) {
  const auto ended = epoch_with(epoch);
  if (!ended) return;
  send(EpochEnded{.epoch = epoch, .ring = ring, .reason = reason});
  ended->end(ring, reason, on_end_);
}

void RemoteStepGroup::leave(uint32_t /*ring*/) {
  const std::lock_guard lock(mutex_);
  if (!epoch_) return;
  if (send_ && is_of_connection_) send_(EpochLeft{epoch_->number()});
  epoch_.reset();
}

void RemoteStepGroup::interrupt(uint32_t /*ring*/) {
  const std::lock_guard lock(mutex_);
  interrupted_ = true;
  if (joined_) joined_->set();
}

void RemoteStepGroup::attach(std::string host, SendStepMessage send) {
  const std::lock_guard lock(mutex_);
  host_ = std::move(host);
  send_ = std::move(send);
  is_of_connection_ = false;
  if (joined_ && !epoch_ && !interrupted_) send_(JoinEpoch{experts_});
}

void RemoteStepGroup::handle(StepMessage message) {
  if (auto* begun = std::get_if<EpochBegun>(&message)) {
    begin(std::move(*begun));
  } else if (const auto* reached = std::get_if<StepReached>(&message)) {
    if (const auto epoch = epoch_with(reached->epoch)) epoch->raise_target(reached->step);
  } else if (const auto* ended = std::get_if<EpochEnded>(&message)) {
    if (const auto epoch = epoch_with(ended->epoch)) epoch->end(ended->ring, ended->reason, on_end_);
  } else {
    throw_error(ErrorCode::kData, "it sent a message about steps that only rings send");
  }
}

void RemoteStepGroup::begin(EpochBegun begun) {
  if (begun.rings.size() != ring_count_) {
    throw_error(ErrorCode::kData,
                fmt::format("it begins an epoch of {} rings, wanted {}", begun.rings.size(), ring_count_));
  }
  const std::lock_guard lock(mutex_);
  if (!joined_ || epoch_) throw_error(ErrorCode::kData, "it begins an epoch that the ring has not joined");
  for (comm::RingExperts& ring : begun.rings) comm::set_host(ring.endpoints, host_);
  epoch_ = std::make_shared<StepEpoch>(begun.epoch, ring_count_);
  rings_ = std::move(begun.rings);
  is_of_connection_ = true;
  joined_->set();
}

void RemoteStepGroup::detach(const std::string& reason) {
  std::shared_ptr<StepEpoch> ended;
  {
    const std::lock_guard lock(mutex_);
    send_ = {};
    if (is_of_connection_) ended = epoch_;
    is_of_connection_ = false;
  }
  // The exchange may notify other rings first: this ring is the one that is lost to them.
  if (ended) ended->end(static_cast<int32_t>(ring_), reason, on_end_);
}

}  // namespace millrace::sched
