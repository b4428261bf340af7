#include "base/random.h"

#include <catch2/catch.hpp>

using namespace millrace;

TEST_CASE("philox4x32 gives the published test vectors") {
  // Known answers of the authors' Random123 distribution (philox4x32 10 rounds).
  REQUIRE(philox4x32({0, 0}, {0, 0, 0, 0}) == std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  REQUIRE(philox4x32({0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}) ==
          std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
}

TEST_CASE("uniform_at is uniform and depends on both seed and position") {
  constexpr int kDraws = 100000;
  double sum = 0;
  int below_tenth = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double u = uniform_at(7, static_cast<uint64_t>(i));
    REQUIRE(u >= 0.0);
    REQUIRE(u < 1.0);
    sum += u;
    below_tenth += u < 0.1;
  }
  REQUIRE(sum / kDraws == Approx(0.5).margin(0.005));
  REQUIRE(below_tenth == Approx(kDraws / 10).margin(500));
  REQUIRE(uniform_at(7, 1) != uniform_at(8, 1));
}
