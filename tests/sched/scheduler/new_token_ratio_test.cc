#include "sched/scheduler/new_token_ratio.h"

#include <catch2/catch.hpp>

using namespace millrace::sched;

TEST_CASE("the ratio falls over 600 plans and a retraction restores it") {
  NewTokenRatio ratio(0.7);
  for (int plan = 0; plan < 300; ++plan) ratio.after_plan();
  REQUIRE(ratio.value() == Approx(0.7 * (1 + 0.14) / 2));
  for (int plan = 0; plan < 700; ++plan) ratio.after_plan();
  REQUIRE(ratio.value() == Approx(0.7 * 0.14));
  ratio.after_retraction();
  REQUIRE(ratio.value() == 0.7);
}
