#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/enum_names.h"
#include "sched/router/prefix_index.h"

namespace millrace::sched {

/// How a router chooses the ring of a request that names none.
enum class LoadBalanceMethod : uint8_t {
  kCacheAware,     ///< the longest cached prefix, unless loads are out of proportion; else the shortest queue
  kRoundRobin,     ///< one ring after the other
  kShortestQueue,  ///< the fewest requests in flight
};

inline constexpr EnumName<LoadBalanceMethod> kLoadBalanceMethodNames[] = {
    {LoadBalanceMethod::kCacheAware, "cache_aware"},
    {LoadBalanceMethod::kRoundRobin, "round_robin"},
    {LoadBalanceMethod::kShortestQueue, "shortest_queue"},
};
constexpr std::span<const EnumName<LoadBalanceMethod>> enum_names(LoadBalanceMethod) {
  return kLoadBalanceMethodNames;
}

/// What a route followed from, for metrics.
enum class RouteReason : uint8_t {
  kPinned,      ///< the request named the ring
  kPrefix,      ///< the ring has the longest cached prefix
  kLoad,        ///< the ring has the shortest queue
  kRoundRobin,  ///< it was the ring's turn
};
inline constexpr std::array<std::string_view, 4> kRouteReasonNames = {"pinned", "prefix", "load", "round_robin"};

struct Route {
  size_t ring = 0;
  RouteReason reason = RouteReason::kLoad;
  size_t cached_pages = 0;  ///< pages of the prompt that the ring is expected to have
};

struct RoutingOptions {
  LoadBalanceMethod method = LoadBalanceMethod::kCacheAware;
  size_t ring_count = 1;
  uint32_t max_running = 1;  ///< requests that one ring runs at once
};

/// Chooses rings for requests, from their loads and from what their caches are expected to have. docs/rings.md states
/// the rules and their numbers. Plain and deterministic, without clock and I/O; the owner serializes the calls.
class RoutingPolicy {
 public:
  /// What the policy knows of one ring at the moment of a choice.
  struct RingLoad {
    bool serves = false;     ///< it takes requests
    uint32_t in_flight = 0;  ///< requests routed to it that have not ended
  };

  explicit RoutingPolicy(const RoutingOptions& options);

  /// Returns the ring for a prompt of these pages; nothing when no ring serves. `loads` has one element per ring.
  [[nodiscard]] std::optional<Route> choose(std::span<const PageName> prompt, std::span<const RingLoad> loads);
  /// Returns whether choices depend on the pages of prompts.
  [[nodiscard]] bool uses_prefixes() const { return options_.method == LoadBalanceMethod::kCacheAware; }

  /// Notes that a ring has these pages cached, or will have once it has computed a request.
  void add_prefix(size_t ring, std::span<const PageName> prefix);
  /// Sets how many pages a ring's cache holds at most, and how many it has evicted since its start. The index forgets
  /// as many as were evicted since the last call.
  void follow_cache(size_t ring, uint64_t max_pages, uint64_t evicted_pages);
  /// Forgets what a ring has cached: it was flushed, or broke.
  void forget_prefixes(size_t ring);

 private:
  struct RingCache {
    PrefixIndex index;
    uint64_t evicted_pages = 0;
  };

  [[nodiscard]] Route shortest_queue(std::span<const RingLoad> loads);
  [[nodiscard]] Route longest_prefix(std::span<const PageName> prompt, std::span<const RingLoad> loads);
  [[nodiscard]] Route next_in_turn(std::span<const RingLoad> loads);
  [[nodiscard]] bool is_overloaded(uint32_t load, uint32_t least) const;

  const RoutingOptions options_;
  const uint32_t max_excess_;  // requests by which a ring may exceed the least loaded one in any case
  std::vector<RingCache> caches_;
  size_t turn_ = 0;  // the ring at which the next search begins
};

}  // namespace millrace::sched
