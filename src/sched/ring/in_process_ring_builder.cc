#include "sched/ring/in_process_ring_builder.h"

#include <utility>

namespace millrace::sched {

asio::awaitable<RingEnds> InProcessRingBuilder::build(RingEpoch) {
  comm::Link in = config_.make_link(runtime_, stages_.first_runtime(), config_.window + 1);
  comm::Link out = config_.make_link(stages_.last_runtime(), runtime_, config_.window + 1);
  stages_.start(std::move(in.receiver), std::move(out.sender));
  co_return RingEnds{.to_first_stage = std::move(in.sender),
                     .from_last_stage = std::move(out.receiver),
                     .pages = std::nullopt,  // such a ring never changes its pools
                     .steps = nullptr};
}

asio::awaitable<void> InProcessRingBuilder::tear_down(RingEpoch, std::string reason) {
  stages_.stop(reason);
  co_await stages_.join();
}

}  // namespace millrace::sched
