#include "sched/steps/step_watch.h"

#include <catch2/catch.hpp>

using namespace millrace;
using namespace std::chrono_literals;

namespace {

/// A watch with a quiet time of a second, at moments in milliseconds.
struct Watched {
  bool at(int ms, uint64_t steps, bool in_flight = false) {
    return watch.is_active(steps, in_flight, async::TimePoint(std::chrono::milliseconds(ms)));
  }
  sched::StepWatch watch{1s};
};

}  // namespace

TEST_CASE("rings are at work until there is no step for the quiet time") {
  Watched watched;
  REQUIRE(watched.at(5000, 7));
  REQUIRE(watched.at(5999, 7));
  REQUIRE_FALSE(watched.at(6000, 7));
  REQUIRE(watched.at(6001, 8));
  REQUIRE(watched.at(7000, 8));
  REQUIRE_FALSE(watched.at(7001, 8));
}

TEST_CASE("a step that lasts longer than the quiet time is work") {
  Watched watched;
  REQUIRE(watched.at(0, 1, true));
  REQUIRE(watched.at(9000, 1, true));
  REQUIRE(watched.at(9999, 1));
  REQUIRE_FALSE(watched.at(10000, 1));
}

TEST_CASE("short steps between two looks are work") {
  Watched watched;
  for (int look = 0; look < 20; ++look) REQUIRE(watched.at(look * 900, static_cast<uint64_t>(look)));
}
