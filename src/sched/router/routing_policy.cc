#include "sched/router/routing_policy.h"

#include <algorithm>

#include "base/check.h"

namespace millrace::sched {
namespace {

/// A ring that exceeds the least loaded one by max_excess_ requests is overloaded at this multiple of its load.
constexpr double kMaxLoadRatio = 1.5;
constexpr uint32_t kMinExcess = 2;
constexpr uint32_t kMaxExcess = 8;
/// Pages count when the prompt has at most this many times as many.
constexpr size_t kPromptPerGain = 4;

/// Returns whether cached pages of a prompt are worth a route.
bool is_worthwhile(size_t pages, std::span<const PageName> prompt) {
  return pages > 0 && pages * kPromptPerGain >= prompt.size();
}

}  // namespace

RoutingPolicy::RoutingPolicy(const RoutingOptions& options)
    : options_(options),
      max_excess_(std::clamp(options.max_running / 4, kMinExcess, kMaxExcess)),
      caches_(options.ring_count) {
  CHECK(options.ring_count > 0, "a router has at least one ring");
}

std::optional<Route> RoutingPolicy::choose(std::span<const PageName> prompt, std::span<const RingLoad> loads) {
  CHECK(loads.size() == caches_.size(), "{} loads of {} rings", loads.size(), caches_.size());
  if (std::ranges::none_of(loads, &RingLoad::serves)) return std::nullopt;
  switch (options_.method) {
    case LoadBalanceMethod::kCacheAware: return longest_prefix(prompt, loads);
    case LoadBalanceMethod::kRoundRobin: return next_in_turn(loads);
    case LoadBalanceMethod::kShortestQueue: return shortest_queue(loads);
  }
  return std::nullopt;
}

Route RoutingPolicy::next_in_turn(std::span<const RingLoad> loads) {
  while (!loads[turn_].serves) turn_ = (turn_ + 1) % loads.size();
  const size_t ring = turn_;
  turn_ = (turn_ + 1) % loads.size();
  return {.ring = ring, .reason = RouteReason::kRoundRobin};
}

// Equal loads take turns, so that requests one at a time use the caches of all rings.
Route RoutingPolicy::shortest_queue(std::span<const RingLoad> loads) {
  std::optional<size_t> best;
  for (size_t i = 0; i < loads.size(); ++i) {
    const size_t ring = (turn_ + i) % loads.size();
    if (!loads[ring].serves) continue;
    if (!best || loads[ring].in_flight < loads[*best].in_flight) best = ring;
  }
  turn_ = (*best + 1) % loads.size();
  return {.ring = *best, .reason = RouteReason::kLoad};
}

bool RoutingPolicy::is_overloaded(uint32_t load, uint32_t least) const {
  return load >= least + max_excess_ && static_cast<double>(load) > kMaxLoadRatio * least;
}

Route RoutingPolicy::longest_prefix(std::span<const PageName> prompt, std::span<const RingLoad> loads) {
  const size_t turn_before = turn_;
  Route shortest = shortest_queue(loads);
  shortest.cached_pages = caches_[shortest.ring].index.match(prompt);
  Route best = shortest;
  for (size_t ring = 0; ring < loads.size(); ++ring) {
    if (!loads[ring].serves || is_overloaded(loads[ring].in_flight, loads[shortest.ring].in_flight)) continue;
    const size_t cached = caches_[ring].index.match(prompt);
    const bool is_less_loaded = loads[ring].in_flight < loads[best.ring].in_flight;
    if (cached < best.cached_pages || (cached == best.cached_pages && !is_less_loaded)) continue;
    best = {.ring = ring, .reason = RouteReason::kPrefix, .cached_pages = cached};
  }
  if (is_worthwhile(shortest.cached_pages, prompt)) shortest.reason = RouteReason::kPrefix;
  if (!is_worthwhile(best.cached_pages - shortest.cached_pages, prompt)) return shortest;
  turn_ = turn_before;  // only a choice by load uses up a turn
  return best;
}

void RoutingPolicy::add_prefix(size_t ring, std::span<const PageName> prefix) {
  caches_[ring].index.insert(prefix);
}

void RoutingPolicy::follow_cache(size_t ring, uint64_t max_pages, uint64_t evicted_pages) {
  RingCache& cache = caches_[ring];
  cache.index.set_max_pages(max_pages);
  // A head that was built anew counts from zero.
  if (evicted_pages > cache.evicted_pages) cache.index.evict(evicted_pages - cache.evicted_pages);
  cache.evicted_pages = evicted_pages;
}

void RoutingPolicy::forget_prefixes(size_t ring) {
  caches_[ring].index.clear();
}

}  // namespace millrace::sched
