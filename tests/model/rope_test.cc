#include "model/rope.h"

#include <catch2/catch.hpp>
#include <cmath>

using namespace millrace::model;

TEST_CASE("plain and linear rotary frequencies") {
  const auto plain = rotary_frequencies({.theta = 10000.0}, 8);
  REQUIRE(plain.attention_factor == 1.0f);
  REQUIRE(plain.inverse == std::vector<float>{1.0f, 0.1f, 0.01f, 0.001f});
  const auto linear = rotary_frequencies({.kind = RopeKind::kLinear, .theta = 10000.0, .factor = 4.0}, 8);
  REQUIRE(linear.inverse == std::vector<float>{0.25f, 0.025f, 0.0025f, 0.00025f});
}

TEST_CASE("a proportional rotation turns the first pairs of a head") {
  const RopeConfig rope{.kind = RopeKind::kProportional, .theta = 10000.0, .rotated_pairs = 2};
  REQUIRE(rotary_frequencies(rope, 8).inverse == std::vector<float>{1.0f, 0.1f, 0.0f, 0.0f});
}

TEST_CASE("llama3 scaling keeps short waves and divides long and blends") {
  const RopeConfig rope{.kind = RopeKind::kLlama3,
                        .theta = 10000.0,
                        .factor = 8.0,
                        .original_max_position = 1024,
                        .low_freq_factor = 1.0,
                        .high_freq_factor = 4.0};
  const auto scaled = rotary_frequencies(rope, 8).inverse;
  REQUIRE(scaled[0] == 1.0f);
  REQUIRE(scaled[1] == 0.1f);
  // Wavelength 628.3 lies between 256 and 1024.
  const double smooth = (1024.0 / (2.0 * M_PI / 0.01) - 1.0) / 3.0;
  REQUIRE(scaled[2] == Approx((1.0 - smooth) * 0.01 / 8.0 + smooth * 0.01).epsilon(1e-6));
  REQUIRE(scaled[3] == 0.000125f);
}

TEST_CASE("llama3 scaling with equal factors has no waves between") {
  const RopeConfig rope{.kind = RopeKind::kLlama3,
                        .theta = 10000.0,
                        .factor = 8.0,
                        .original_max_position = 1024,
                        .low_freq_factor = 1.0,
                        .high_freq_factor = 1.0};
  const auto scaled = rotary_frequencies(rope, 8).inverse;
  REQUIRE(scaled == std::vector<float>{1.0f, 0.1f, 0.01f, 0.000125f});
}

TEST_CASE("yarn ramps from extrapolation to interpolation") {
  const RopeConfig rope{.kind = RopeKind::kYarn, .theta = 10000.0, .factor = 4.0, .original_max_position = 4096};
  const auto scaled = rotary_frequencies(rope, 64);
  // channel(r) = 64 ln(4096 / 2πr) / (2 ln 10000): 10.47 for 32 rotations, 22.51 for one.
  const auto plain = [](int pair) { return std::pow(10000.0, -2.0 * pair / 64.0); };
  for (int pair = 0; pair < 32; ++pair) {
    const double interpolated = std::min(std::max((pair - 10.0) / (23.0 - 10.0), 0.0), 1.0);
    CAPTURE(pair);
    REQUIRE(scaled.inverse[static_cast<size_t>(pair)] ==
            Approx(plain(pair) * (1.0 - interpolated) + plain(pair) / 4.0 * interpolated).epsilon(1e-6));
  }
  REQUIRE(scaled.attention_factor == Approx(0.1 * std::log(4.0) + 1.0));
}

TEST_CASE("the attention factor of yarn is given or follows from scales") {
  RopeConfig rope{.kind = RopeKind::kYarn, .theta = 10000.0, .factor = 40.0, .original_max_position = 4096};
  rope.mscale = 1.0;
  rope.mscale_all_dim = 0.5;
  REQUIRE(rotary_frequencies(rope, 64).attention_factor ==
          Approx((0.1 * std::log(40.0) + 1.0) / (0.05 * std::log(40.0) + 1.0)));
  rope.attention_factor = 0.75;
  REQUIRE(rotary_frequencies(rope, 64).attention_factor == 0.75f);
}
