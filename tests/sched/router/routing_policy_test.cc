#include "sched/router/routing_policy.h"

#include <catch2/catch.hpp>

#include "base/random.h"
#include "support/effort.h"

using namespace millrace;
using namespace millrace::sched;

namespace {

using Loads = std::vector<RoutingPolicy::RingLoad>;
using Pages = std::vector<PageName>;

RoutingPolicy policy_of(LoadBalanceMethod method, size_t rings, uint32_t max_running = 64) {
  RoutingPolicy policy({.method = method, .ring_count = rings, .max_running = max_running});
  for (size_t ring = 0; ring < rings; ++ring) policy.follow_cache(ring, 1000, 0);
  return policy;
}

Loads loads_of(const std::vector<uint32_t>& in_flight) {
  Loads loads;
  for (const uint32_t each : in_flight) loads.push_back({.serves = true, .in_flight = each});
  return loads;
}

Pages pages_from(PageName first, size_t count) {
  Pages pages;
  for (size_t i = 0; i < count; ++i) pages.push_back(first + i);
  return pages;
}

}  // namespace

TEST_CASE("round robin takes the rings that serve in turn") {
  RoutingPolicy policy = policy_of(LoadBalanceMethod::kRoundRobin, 3);
  Loads loads = loads_of({9, 0, 0});
  std::vector<size_t> chosen;
  for (int i = 0; i < 4; ++i) chosen.push_back(policy.choose({}, loads)->ring);
  REQUIRE(chosen == std::vector<size_t>{0, 1, 2, 0});
  loads[1].serves = false;
  REQUIRE(policy.choose({}, loads)->ring == 2);
  REQUIRE(policy.choose({}, loads)->ring == 0);
  REQUIRE(policy.choose({}, loads)->reason == RouteReason::kRoundRobin);
}

TEST_CASE("the shortest queue wins and equal queues take turns") {
  RoutingPolicy policy = policy_of(LoadBalanceMethod::kShortestQueue, 3);
  REQUIRE(policy.choose({}, loads_of({3, 1, 2}))->ring == 1);
  std::vector<size_t> chosen;
  for (int i = 0; i < 3; ++i) chosen.push_back(policy.choose({}, loads_of({4, 4, 4}))->ring);
  REQUIRE(chosen == std::vector<size_t>{2, 0, 1});
}

TEST_CASE("nothing is chosen when no ring serves") {
  for (const auto& method : enum_names(LoadBalanceMethod())) {
    RoutingPolicy policy = policy_of(method.value, 2);
    Loads loads(2);
    REQUIRE_FALSE(policy.choose(pages_from(1, 4), loads).has_value());
  }
}

TEST_CASE("the longest prefix wins while loads are in proportion") {
  RoutingPolicy policy = policy_of(LoadBalanceMethod::kCacheAware, 2);
  policy.add_prefix(0, pages_from(1, 2));
  policy.add_prefix(1, pages_from(1, 8));
  const auto route = policy.choose(pages_from(1, 9), loads_of({0, 7}));
  REQUIRE(route->ring == 1);
  REQUIRE(route->reason == RouteReason::kPrefix);
  REQUIRE(route->cached_pages == 8);
  REQUIRE(policy.choose(pages_from(1, 9), loads_of({0, 8}))->ring == 0);    // 8 more, and more than 1.5 times
  REQUIRE(policy.choose(pages_from(1, 9), loads_of({16, 24}))->ring == 1);  // 8 more, 1.5 times
  REQUIRE(policy.choose(pages_from(1, 9), loads_of({15, 24}))->ring == 0);
  REQUIRE(policy.choose(pages_from(500, 9), loads_of({3, 2}))->reason == RouteReason::kLoad);
}

TEST_CASE("rings that run few requests are overloaded sooner") {
  RoutingPolicy policy = policy_of(LoadBalanceMethod::kCacheAware, 2, 4);
  policy.add_prefix(1, pages_from(1, 8));
  REQUIRE(policy.choose(pages_from(1, 8), loads_of({0, 1}))->ring == 1);
  REQUIRE(policy.choose(pages_from(1, 8), loads_of({0, 2}))->ring == 0);
}

TEST_CASE("a short common beginning does not decide the route") {
  RoutingPolicy policy = policy_of(LoadBalanceMethod::kCacheAware, 2);
  policy.add_prefix(0, pages_from(1, 1));
  // One page of five is less than a quarter, one of four is enough.
  REQUIRE(policy.choose(pages_from(1, 5), loads_of({1, 0}))->ring == 1);
  REQUIRE(policy.choose(pages_from(1, 4), loads_of({1, 0}))->ring == 0);
}

TEST_CASE("unknown prompts one at a time use all rings") {
  RoutingPolicy policy = policy_of(LoadBalanceMethod::kCacheAware, 3);
  std::vector<int> counts(3);
  for (uint64_t i = 0; i < 9; ++i) {
    const Pages prompt = pages_from(100 * (i + 1), 4);
    const size_t ring = policy.choose(prompt, loads_of({0, 0, 0}))->ring;
    policy.add_prefix(ring, prompt);
    ++counts[ring];
    REQUIRE(policy.choose(prompt, loads_of({0, 0, 0}))->ring == ring);  // asked again, it stays
  }
  REQUIRE(counts == std::vector<int>{3, 3, 3});
}

TEST_CASE("what a ring has lost or evicted is not counted") {
  RoutingPolicy policy = policy_of(LoadBalanceMethod::kCacheAware, 2);
  const Pages prompt = pages_from(1, 8);
  policy.add_prefix(1, prompt);
  policy.follow_cache(1, 1000, 5);
  REQUIRE(policy.choose(prompt, loads_of({0, 1}))->cached_pages == 3);
  policy.follow_cache(1, 1000, 5);  // no more since
  REQUIRE(policy.choose(prompt, loads_of({0, 1}))->cached_pages == 3);
  policy.follow_cache(1, 2, 5);
  REQUIRE(policy.choose(prompt, loads_of({0, 1}))->cached_pages == 2);
  policy.add_prefix(1, prompt);
  policy.forget_prefixes(1);
  REQUIRE(policy.choose(prompt, loads_of({0, 1}))->reason == RouteReason::kLoad);
}

TEST_CASE("a choice serves and is never out of proportion") {
  for (uint64_t seed = 0; seed < test::repetitions(300); ++seed) {
    INFO("seed " << seed);
    uint64_t draws = 0;
    const auto range = [&](uint32_t bound) { return static_cast<uint32_t>(uniform_at(seed, draws++) * bound); };
    const size_t rings = 1 + range(5);
    RoutingPolicy policy = policy_of(static_cast<LoadBalanceMethod>(range(3)), rings);
    Loads loads(rings);
    for (int round = 0; round < 60; ++round) {
      uint32_t least = UINT32_MAX;
      for (auto& load : loads) {
        load = {.serves = range(4) > 0, .in_flight = range(40)};
        if (load.serves) least = std::min(least, load.in_flight);
      }
      const Pages prompt = pages_from(100 * range(5), range(12));
      const auto route = policy.choose(prompt, loads);
      REQUIRE(route.has_value() == (least != UINT32_MAX));
      if (!route) continue;
      REQUIRE(loads[route->ring].serves);
      REQUIRE(route->cached_pages <= prompt.size());
      if (route->reason == RouteReason::kLoad) REQUIRE(loads[route->ring].in_flight == least);
      if (route->reason == RouteReason::kPrefix) {
        const uint32_t load = loads[route->ring].in_flight;
        REQUIRE((load < least + 8 || load <= 1.5 * least));
        REQUIRE(route->cached_pages * 4 >= prompt.size());
      }
      policy.add_prefix(route->ring, prompt);
    }
  }
}
