#include "sched/ring/ring.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <chrono>
#include <utility>

#include "base/log.h"

namespace millrace::sched {
namespace {

using namespace std::chrono_literals;

/// Delay between a break and the next attempt, so that a stage that fails at once does not spin.
constexpr async::Duration kRebuildDelay = 100ms;
/// Upper bound of the delay, which doubles while builds fail for one and the same reason.
constexpr async::Duration kMaxRebuildDelay = 3s;

}  // namespace

Ring::Ring(async::Runtime& head_runtime, const HeadOptions& head, RingBuilder& ring_builder)
    : runtime_(head_runtime), ring_builder_(ring_builder), head_(head_runtime, head), tasks_(head_runtime) {}

void Ring::start() {
  asio::post(runtime_.executor(), [this] {
    tasks_.spawn("head", head_.run());
    tasks_.spawn("keep the ring built", keep_built());
  });
}

void Ring::stop() {
  head_.stop();
  asio::post(runtime_.executor(), [this] { ring_builder_.interrupt(); });
}

asio::awaitable<void> Ring::keep_built() {
  async::Duration delay = kRebuildDelay;
  for (uint32_t number = 1; !head_.stopping(); ++number) {
    const RingEpoch epoch(number);
    const std::string before = build_failure_;
    const std::string reason = co_await run_epoch(epoch);
    co_await ring_builder_.tear_down(epoch, reason);
    if (head_.stopping()) co_return;
    const bool same_failure = !build_failure_.empty() && build_failure_ == before;
    delay = same_failure ? std::min(2 * delay, kMaxRebuildDelay) : kRebuildDelay;
    co_await async::sleep_for(runtime_, delay);
    log::info("forming the ring again, epoch {}", number + 1);
  }
}

asio::awaitable<std::string> Ring::run_epoch(RingEpoch epoch) {
  RingEnds ends;
  build_failure_.clear();
  try {
    ends = co_await ring_builder_.build(epoch);
  } catch (const std::exception& error) {
    build_failure_ = error.what();
  }
  if (!build_failure_.empty()) {
    if (!head_.stopping()) log::warn("epoch {} did not form: {}", epoch.value(), build_failure_);
    co_return build_failure_;
  }
  if (ends.pages) head_.resize_pools(*ends.pages);
  head_.attach(epoch, std::move(ends.to_first_stage), std::move(ends.from_last_stage), std::move(ends.steps));
  co_await head_.wait_until_broken();
  co_return head_.break_reason();
}

}  // namespace millrace::sched
