#include "hub/byte_ranges.h"

#include <catch2/catch.hpp>
#include <random>
#include <vector>

namespace millrace::hub {
namespace {

TEST_CASE("A set of ranges agrees with a list of bytes") {
  constexpr uint64_t kSize = 64;
  std::mt19937 draw(1);
  for (int round = 0; round < 200; ++round) {
    ByteRanges ranges;
    std::vector<bool> bytes(kSize);
    for (int i = 0; i < 6; ++i) {
      const uint64_t begin = draw() % kSize;
      const uint64_t end = begin + draw() % (kSize - begin + 1);
      ranges.add({begin, end});
      for (uint64_t at = begin; at < end; ++at) bytes[at] = true;
    }
    const uint64_t begin = draw() % kSize;
    const uint64_t end = begin + draw() % (kSize - begin + 1);
    std::vector<bool> missing(kSize);
    for (const ByteRange& part : ranges.missing({begin, end})) {
      REQUIRE(part.begin < part.end);
      for (uint64_t at = part.begin; at < part.end; ++at) missing[at] = true;
    }
    for (uint64_t at = 0; at < kSize; ++at) REQUIRE(missing[at] == (at >= begin && at < end && !bytes[at]));
    const auto all = ranges.all();
    for (size_t i = 1; i < all.size(); ++i) REQUIRE(all[i - 1].end < all[i].begin);
    REQUIRE(ByteRanges::parse(ranges.to_text(), kSize).value().all() == all);
  }
}

TEST_CASE("A damaged list of ranges is refused") {
  for (const char* text : {"x", "1", "1 2", "2 1\n", "1 1\n", "1 2\n3", "-1 2\n", "0 101\n", "1 2\n\n"}) {
    CAPTURE(text);
    const auto ranges = ByteRanges::parse(text, 100);
    REQUIRE(ranges.has_error());
    CHECK(ranges.error().code == ErrorCode::kData);
  }
}

TEST_CASE("Requests join near ranges and stay below a piece") {
  CHECK(plan_requests({}, 10, 100).empty());
  CHECK(plan_requests({{50, 60}, {0, 10}, {15, 20}}, 5, 100) == std::vector<ByteRange>{{0, 20}, {50, 60}});
  CHECK(plan_requests({{0, 250}}, 0, 100) == std::vector<ByteRange>{{0, 100}, {100, 200}, {200, 250}});
  CHECK(plan_requests({{0, 10}, {2, 5}}, 0, 100) == std::vector<ByteRange>{{0, 10}});
}

}  // namespace
}  // namespace millrace::hub
