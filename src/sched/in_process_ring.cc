#include "sched/in_process_ring.h"

#include <boost/asio/post.hpp>

#include "base/log.h"
#include "comm/in_process_link.h"

namespace millrace::sched {
namespace {

using namespace std::chrono_literals;

/// Between a break and the next attempt: a stage that fails at once must not spin.
constexpr async::Duration kReformDelay = 100ms;

}  // namespace

InProcessRing::InProcessRing(async::Runtime& head_runtime, std::vector<async::Runtime*> stage_runtimes,
                             const std::vector<LocalStages::RunnerFactory>& runners, const HeadOptions& head,
                             const RingShape& shape)
    : runtime_(head_runtime),
      shape_(shape),
      head_(head_runtime, head),
      stages_(head_runtime, std::move(stage_runtimes), runners, StageId(0), shape),
      tasks_(head_runtime) {}

void InProcessRing::start() {
  asio::post(runtime_.executor(), [this] {
    tasks_.spawn("head", head_.run());
    tasks_.spawn("keep the ring formed", keep_formed());
  });
}

asio::awaitable<void> InProcessRing::keep_formed() {
  for (uint32_t generation = 1;; ++generation) {
    comm::Link in = comm::make_in_process_link(runtime_, stages_.first_runtime(), shape_.window + 1);
    comm::Link out = comm::make_in_process_link(stages_.last_runtime(), runtime_, shape_.window + 1);
    stages_.start(std::move(in.receiver), std::move(out.sender));
    head_.attach(Generation(generation), std::move(in.sender), std::move(out.receiver));
    co_await head_.until_broken();
    co_await stages_.join();
    if (head_.stopping()) co_return;
    co_await async::sleep_for(runtime_, kReformDelay);
    log::info("forming the ring again, generation {}", generation + 1);
  }
}

}  // namespace millrace::sched
