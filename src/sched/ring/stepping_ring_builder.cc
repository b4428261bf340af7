#include "sched/ring/stepping_ring_builder.h"

#include <utility>

namespace millrace::sched {

asio::awaitable<RingEnds> SteppingRingBuilder::build(RingEpoch epoch) {
  StepGroup::Membership membership = co_await group_.join(number_, runtime_);
  on_epoch_(membership.epoch);
  RingEnds ends = co_await ring_.build(epoch);
  ends.steps = std::make_unique<StepParticipant>(std::move(membership.board));
  co_return ends;
}

asio::awaitable<void> SteppingRingBuilder::tear_down(RingEpoch epoch, std::string reason) {
  group_.end(number_, reason);
  co_await ring_.tear_down(epoch, std::move(reason));
  group_.leave(number_);
}

void SteppingRingBuilder::interrupt() {
  group_.interrupt(number_);
  ring_.interrupt();
}

}  // namespace millrace::sched
