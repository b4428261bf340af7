#include "base/hash.h"

#include <array>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <set>
#include <string_view>

using namespace millrace;

TEST_CASE("bytes hash to the values that xxHash documents") {
  // The empty input's XXH3-64 value is part of xxHash's specification.
  REQUIRE(hash_bytes({}) == 0x2D06800538D394C2u);
  const std::string_view text = "millrace";
  const auto bytes = std::as_bytes(std::span(text));
  REQUIRE(hash_bytes(bytes) == hash_bytes(bytes));
  REQUIRE(hash_bytes(bytes) != hash_bytes(bytes.first(7)));
}

TEST_CASE("mixed words are distinct, also in their low bits") {
  std::set<uint64_t> whole;
  std::array<int, 16> buckets{};
  for (uint64_t i = 0; i < 16'000; ++i) {
    const uint64_t mixed = mix_bits(i << 40);
    whole.insert(mixed);
    ++buckets[mixed % buckets.size()];
  }
  REQUIRE(whole.size() == 16'000);
  for (const int count : buckets) REQUIRE(std::abs(count - 1000) < 200);
  // The first output of SplitMix64 from state 0 checks the constants.
  REQUIRE(mix_bits(0x9E3779B97F4A7C15u) == 0xE220A8397B1DCDAFu);
}
