#include "sched/ring.h"

#include <algorithm>
#include <boost/asio/post.hpp>

#include "base/log.h"

namespace millrace::sched {
namespace {

using namespace std::chrono_literals;

/// Between a break and the next attempt: a stage that fails at once must not spin.
constexpr async::Duration kReformDelay = 100ms;
/// That doubles up to this while a ring does not form for one and the same reason.
constexpr async::Duration kLongestReformDelay = 3s;

}  // namespace

asio::awaitable<RingEnds> InProcessFormer::form(Generation) {
  comm::Link in = shape_.make_link(runtime_, stages_.first_runtime(), shape_.window + 1);
  comm::Link out = shape_.make_link(stages_.last_runtime(), runtime_, shape_.window + 1);
  stages_.start(std::move(in.receiver), std::move(out.sender));
  co_return RingEnds{std::move(in.sender), std::move(out.receiver)};
}

asio::awaitable<void> InProcessFormer::dissolve(Generation, std::string reason) {
  stages_.stop(reason);
  co_await stages_.join();
}

Ring::Ring(async::Runtime& head_runtime, const HeadOptions& head, RingFormer& former)
    : runtime_(head_runtime), former_(former), head_(head_runtime, head), tasks_(head_runtime) {}

void Ring::start() {
  asio::post(runtime_.executor(), [this] {
    tasks_.spawn("head", head_.run());
    tasks_.spawn("keep the ring formed", keep_formed());
  });
}

void Ring::stop() {
  head_.stop();
  asio::post(runtime_.executor(), [this] { former_.interrupt(); });
}

asio::awaitable<void> Ring::keep_formed() {
  async::Duration delay = kReformDelay;
  for (uint32_t number = 1; !head_.stopping(); ++number) {
    const Generation generation(number);
    const std::string before = obstacle_;
    const std::string reason = co_await run_generation(generation);
    co_await former_.dissolve(generation, reason);
    if (head_.stopping()) co_return;
    const bool no_news = !obstacle_.empty() && obstacle_ == before;
    delay = no_news ? std::min(2 * delay, kLongestReformDelay) : kReformDelay;
    co_await async::sleep_for(runtime_, delay);
    log::info("forming the ring again, generation {}", number + 1);
  }
}

asio::awaitable<std::string> Ring::run_generation(Generation generation) {
  RingEnds ends;
  obstacle_.clear();
  try {
    ends = co_await former_.form(generation);
  } catch (const std::exception& error) {
    obstacle_ = error.what();
  }
  if (!obstacle_.empty()) {
    if (!head_.stopping()) log::warn("generation {} did not form: {}", generation.value(), obstacle_);
    co_return obstacle_;
  }
  head_.attach(generation, std::move(ends.to_first_stage), std::move(ends.from_last_stage));
  co_await head_.until_broken();
  co_return head_.break_reason();
}

}  // namespace millrace::sched
