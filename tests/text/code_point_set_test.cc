#include "text/code_point_set.h"

#include <catch2/catch.hpp>
#include <random>

using namespace millrace::text;

TEST_CASE("sets of code points are those of their members") {
  std::mt19937 random(3);
  const auto draw = [&](std::vector<bool>& members) {
    std::vector<CodePointRange> ranges;
    for (size_t i = random() % 6; i > 0; --i) {
      const char32_t first = random() % 60;
      const char32_t last = std::min<char32_t>(first + random() % 9, 59);
      ranges.push_back({first, last});
      std::fill(members.begin() + first, members.begin() + last + 1, true);
    }
    return CodePointSet::of(std::move(ranges));
  };
  for (int round = 0; round < 2000; ++round) {
    std::vector<bool> in_a(60);
    std::vector<bool> in_b(60);
    const CodePointSet a = draw(in_a);
    const CodePointSet b = draw(in_b);
    bool b_is_inside = true;
    for (char32_t c = 0; c < 60; ++c) {
      const bool x = in_a[c];
      const bool y = in_b[c];
      b_is_inside = b_is_inside && (x || !y);
      REQUIRE(a.contains(c) == x);
      REQUIRE(a.complement().contains(c) == !x);
      REQUIRE(a.with(b).contains(c) == (x || y));
      REQUIRE(a.common_with(b).contains(c) == (x && y));
      REQUIRE(a.minus(b).contains(c) == (x && !y));
      REQUIRE(a.differing_from(b).contains(c) == (x != y));
    }
    REQUIRE(a.includes(b) == b_is_inside);
    REQUIRE(a.complement().complement().ranges() == a.ranges());
  }
}

TEST_CASE("no set of code points holds a surrogate") {
  const CodePointSet all = CodePointSet().complement();
  CHECK(all.ranges() == std::vector<CodePointRange>{{0, 0xD7FF}, {0xE000, 0x10FFFF}});
  CHECK(!CodePointSet::of({{0xD7F0, 0xE010}}).contains(0xD800));
  CHECK(all.complement().empty());
}
