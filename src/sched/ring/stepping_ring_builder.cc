#include "sched/ring/stepping_ring_builder.h"

#include <utility>

namespace millrace::sched {

asio::awaitable<RingEnds> SteppingRingBuilder::build(RingEpoch epoch) {
  comm::RingExperts experts = co_await exchange_.open(runtime_);
  StepEpochs::Membership membership = co_await epochs_.join(number_, runtime_, std::move(experts));
  co_await exchange_.begin(runtime_, membership);
  RingEnds ends = co_await ring_.build(epoch);
  ends.steps = std::make_unique<StepParticipant>(std::move(membership.board));
  co_return ends;
}

asio::awaitable<void> SteppingRingBuilder::tear_down(RingEpoch epoch, std::string reason) {
  epochs_.end(number_, reason);
  co_await ring_.tear_down(epoch, std::move(reason));
  co_await exchange_.close();
  epochs_.leave(number_);
}

void SteppingRingBuilder::interrupt() {
  epochs_.interrupt(number_);
  exchange_.interrupt();
  ring_.interrupt();
}

}  // namespace millrace::sched
