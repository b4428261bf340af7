#include "comm/silence_watch.h"

#include <catch2/catch.hpp>

using namespace millrace;
using namespace std::chrono_literals;

namespace {

/// A clock that the test moves.
class SetClock final : public async::Runtime {
 public:
  [[nodiscard]] async::TimePoint now() const override { return now_; }
  [[nodiscard]] asio::any_io_executor executor() override { return {}; }
  async::TimerId arm(async::TimePoint, std::function<void()>) override { return {}; }
  void disarm(async::TimerId) override {}
  void advance(async::Duration duration) { now_ += duration; }

 private:
  async::TimePoint now_{1h};
};

/// Wakes at `planned`, and `delay` later than that.
bool wake(SetClock& clock, comm::SilenceWatch& watch, async::TimePoint planned, async::Duration delay = {}) {
  clock.advance(planned + delay - clock.now());
  return watch.has_expired(planned);
}

}  // namespace

TEST_CASE("silence expires at its limit however the owner wakes") {
  SetClock clock;
  comm::SilenceWatch watch(clock, 1500ms);
  watch.on_receive();
  const async::TimePoint heard = clock.now();
  for (const auto since : {250ms, 500ms, 1250ms, 1499ms}) REQUIRE_FALSE(wake(clock, watch, heard + since));
  REQUIRE(watch.next_check() == heard + 1500ms);
  REQUIRE(wake(clock, watch, watch.next_check()));
  REQUIRE(watch.length() == 1500ms);
}

TEST_CASE("what is heard begins the silence anew") {
  SetClock clock;
  comm::SilenceWatch watch(clock, 1500ms);
  watch.on_receive();
  clock.advance(1400ms);
  watch.on_receive();
  REQUIRE(watch.next_check() == clock.now() + 1500ms);
}

TEST_CASE("a delayed thread judges at its next wake without the delay") {
  SetClock clock;
  comm::SilenceWatch watch(clock, 1500ms);
  watch.on_receive();
  const async::TimePoint heard = clock.now();
  SECTION("over the limit: what came meanwhile has not been read yet") {
    REQUIRE_FALSE(wake(clock, watch, heard + 250ms, 10s));
    REQUIRE(watch.next_check() == heard + 11500ms);
    REQUIRE(wake(clock, watch, watch.next_check()));
  }
  SECTION("at the very moment of judgement") {
    REQUIRE_FALSE(wake(clock, watch, watch.next_check(), 200ms));
    REQUIRE(wake(clock, watch, watch.next_check()));
  }
  SECTION("and hears the peer first: the hold-up before that is nothing any more") {
    clock.advance(3s);
    watch.on_receive();
    REQUIRE_FALSE(watch.has_expired(heard + 250ms));
    REQUIRE(watch.next_check() == clock.now() + 1500ms);
  }
  SECTION("by little, as on any busy machine, which counts") {
    REQUIRE(wake(clock, watch, watch.next_check(), 60ms));
  }
}
