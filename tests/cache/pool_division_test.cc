#include "cache/pool_division.h"

#include <catch2/catch.hpp>

using namespace millrace;
using namespace millrace::cache;

namespace {

constexpr PoolNeeds kNeeds{.page_size = 64, .plan_tokens = 640, .max_running = 64};

/// The states of Qwen3-Next, and the windows of gpt-oss and Gemma 3.
const std::vector<WindowSpec> kStates{{.kind = GroupKind::kState, .state_tokens = 3000}};
const std::vector<WindowSpec> kNarrow{{.window = 128, .token_percent = 100}};
const std::vector<WindowSpec> kWide{{.window = 1024, .token_percent = 520}};

uint32_t device_pages(const std::vector<WindowSpec>& windows, PoolSizes first, const PoolNeeds& needs = kNeeds) {
  return divide_pools(windows, first, needs)[0].pages.device;
}

}  // namespace

TEST_CASE("states of requests of unknown length take half of the memory") {
  // A sequence has three states of 3000 tokens: 18000 tokens are two sequences.
  REQUIRE(expected_sequences(kStates, 18'000 / 64 + 1, kNeeds) == 2);
  REQUIRE(device_pages(kStates, {.device = 18'000 / 64 + 1}) == 6);
  REQUIRE(device_pages(kStates, {.device = 2000}) == 14 * 3);
}

TEST_CASE("no more requests than run take half of the memory") {
  PoolNeeds few = kNeeds;
  few.max_running = 4;
  REQUIRE(expected_sequences(kStates, 1000, few) == 4);
  // Beyond, windows and states of cached sequences take an eighth, or what sequences of 16384 tokens need.
  REQUIRE(expected_sequences(kNarrow, 1000, few) == 64'000 / (8 * 5 * 64));
  REQUIRE(expected_sequences(kNarrow, 10'000, few) == 39);
  REQUIRE(expected_sequences(kStates, 10'000, few) == 39);
  few.shares_prefixes = false;
  REQUIRE(expected_sequences(kNarrow, 1000, few) == 4);
  REQUIRE(expected_sequences(kNarrow, 10'000, few) == 4);
}

TEST_CASE("pools follow the longest sequence where that is short") {
  PoolNeeds needs = kNeeds;
  needs.longest_tokens = 2048;
  REQUIRE(expected_sequences(kStates, 320, needs) == 10);
  REQUIRE(expected_sequences(kStates, 320, kNeeds) == 2);
  REQUIRE(expected_sequences(kStates, 64'000, needs) == 2000);  // cached, at full length
  needs.longest_tokens = 100'000;
  REQUIRE(expected_sequences(kStates, 320, needs) == 2);
  needs.longest_tokens = 10;  // less than a page
  REQUIRE(expected_sequences(kStates, 20, needs) == 20);
}

TEST_CASE("pools follow the expected length where it is given") {
  PoolNeeds needs = kNeeds;
  needs.expected_tokens = 6400;
  REQUIRE(expected_sequences(kStates, 1000, needs) == 10);
  REQUIRE(device_pages(kStates, {.device = 1000}, needs) == 30);
  REQUIRE(device_pages(kNarrow, {.device = 1000}, needs) == 10 * 5 + 10);
  needs.expected_tokens = 1;  // no sequence has less than a page
  REQUIRE(expected_sequences(kStates, 1000, needs) == 1000);
}

TEST_CASE("pools have room for a number of sequences on the device only") {
  const auto usual = divide_pools(kStates, {.device = 256, .host = 512}, kNeeds);
  const auto raised = divide_pools(kStates, {.device = 256, .host = 512, .sequences = 64}, kNeeds);
  REQUIRE(usual[0].pages == PoolSizes{.device = 3, .host = 6});
  REQUIRE(raised[0].pages == PoolSizes{.device = 192, .host = 6});
}

TEST_CASE("a window pool has the pages of the largest plan besides") {
  REQUIRE(device_pages(kNarrow, {.device = 1000, .sequences = 10}) == 10 * 5 + 10);
  REQUIRE(device_pages(kWide, {.device = 1000, .sequences = 10}) == 10 * 19 + 10);
  // No sequence has more pages in a window than at all, but the next ones.
  REQUIRE(device_pages(kWide, {.device = 64, .sequences = 10}) == 64 + 10 * 2 + 10);
  REQUIRE(device_pages(kWide, {.device = 2, .sequences = 1}) == 17 + 2 * 10 + 1);  // one sequence with such plans
}

TEST_CASE("a model of windows only has room for long sequences") {
  const std::vector<WindowSpec> only{{.window = 4096, .token_percent = UINT32_MAX}};
  REQUIRE(expected_sequences(only, 10'000, kNeeds) == 39);  // of 16384 tokens
}
