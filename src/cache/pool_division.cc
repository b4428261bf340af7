#include "cache/pool_division.h"

#include <algorithm>

namespace millrace::cache {
namespace {

/// What all running sequences keep in a window group may take one in this many pages of the first group's count.
constexpr uint64_t kRunningFraction = 4;
/// Pages of a state group for each sequence of the expected length, whether it runs or is cached: those of a running
/// sequence, and one more snapshot.
constexpr uint64_t kStatePagesEach = kRunningStatePages + 1;
/// States may take one in this many bytes of the first group's memory beyond what expected sequences need.
constexpr uint64_t kStateFraction = 4;

uint64_t pages_of(uint64_t tokens, uint32_t page_size) {
  return (tokens + page_size - 1) / page_size;
}

/// Returns the pages that one sequence needs at most, with a micro-batch of its own.
uint64_t max_pages_alone(uint32_t window, const PoolNeeds& needs) {
  return kept_window_pages(window, needs.page_size) + 2 * pages_of(needs.plan_tokens, needs.page_size) + 1;
}

uint32_t device_pages(uint32_t window, uint64_t first_pages, const PoolNeeds& needs) {
  const uint64_t kept = kept_window_pages(window, needs.page_size);
  const uint64_t expected = std::max<uint64_t>(pages_of(needs.expected_tokens, needs.page_size), 1);
  const uint64_t shared = pages_of(first_pages * std::min(kept + 1, expected), static_cast<uint32_t>(expected));
  const uint64_t running = needs.max_running * (kept + 1) + pages_of(needs.plan_tokens, needs.page_size);
  const uint64_t wanted = std::max(std::min(shared, first_pages), std::min(running, first_pages / kRunningFraction));
  return static_cast<uint32_t>(std::min<uint64_t>(std::max(wanted, max_pages_alone(window, needs)), INT32_MAX));
}

uint32_t state_pages(const WindowSpec& spec, uint64_t first_pages, const PoolNeeds& needs) {
  const uint64_t expected = std::max<uint64_t>(pages_of(needs.expected_tokens, needs.page_size), 1);
  const uint64_t shared = pages_of(first_pages * kStatePagesEach, static_cast<uint32_t>(expected));
  const uint64_t affordable = first_pages * needs.page_size / (kStateFraction * std::max(spec.state_tokens, 1u));
  const uint64_t wanted = std::max(shared, std::min(affordable, first_pages));
  return static_cast<uint32_t>(std::clamp<uint64_t>(wanted, kRunningStatePages, INT32_MAX));
}

WindowPool device_pool(const WindowSpec& spec, uint64_t first_pages, const PoolNeeds& needs) {
  WindowPool pool{.window = spec.window, .pages = {}, .kind = spec.kind};
  if (spec.kind == GroupKind::kState) {
    pool.window = state_window(needs.page_size);
    pool.pages.device = state_pages(spec, first_pages, needs);
  } else {
    pool.pages.device = device_pages(spec.window, first_pages, needs);
  }
  return pool;
}

}  // namespace

uint32_t kept_window_pages(uint32_t window, uint32_t page_size) {
  return static_cast<uint32_t>(pages_of(window - 1, page_size)) + 1;
}

std::vector<WindowPool> divide_pools(std::span<const WindowSpec> windows, PoolSizes first, const PoolNeeds& needs) {
  std::vector<WindowPool> pools;
  for (const WindowSpec& spec : windows) {
    WindowPool pool = device_pool(spec, first.device, needs);
    if (first.host > 0) {
      const uint64_t share = uint64_t{first.host} * pool.pages.device / std::max(first.device, 1u);
      pool.pages.host = static_cast<uint32_t>(std::clamp<uint64_t>(share, 1, INT32_MAX));
    }
    pools.push_back(pool);
  }
  return pools;
}

}  // namespace millrace::cache
