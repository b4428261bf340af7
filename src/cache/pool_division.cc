#include "cache/pool_division.h"

#include <algorithm>

namespace millrace::cache {
namespace {

/// Pages of a state group for each sequence, whether it runs or is cached: those of a running sequence, and one more
/// snapshot.
constexpr uint64_t kStatePagesEach = kRunningStatePages + 1;
/// Pages of a window group for each sequence beyond those that it keeps: the next one, and one for drafts.
constexpr uint64_t kNextWindowPages = 2;
/// Window groups may take one in this many bytes of the first group's memory for cached sequences.
constexpr uint64_t kCachedFraction = 8;
/// The length of a sequence that counts as long.
constexpr uint64_t kLongTokens = 16'384;

uint64_t pages_of(uint64_t tokens, uint64_t page_size) {
  return (tokens + page_size - 1) / page_size;
}

/// Returns the pages that one sequence needs at most, with a micro-batch of its own.
uint64_t max_pages_alone(const WindowSpec& spec, const PoolNeeds& needs) {
  if (spec.kind == GroupKind::kState) return kRunningStatePages;
  return kept_window_pages(spec.window, needs.page_size) + 2 * pages_of(needs.plan_tokens, needs.page_size) + 1;
}

/// Returns the pages that a group has for each sequence.
uint64_t pages_each(const WindowSpec& spec, const PoolNeeds& needs) {
  if (spec.kind == GroupKind::kState) return kStatePagesEach;
  return kept_window_pages(spec.window, needs.page_size) + kNextWindowPages;
}

/// Returns the tokens of a long sequence, for as many of which as fill the first group there is room in any case.
uint64_t long_tokens(const PoolNeeds& needs) {
  const uint64_t longest =
      needs.longest_tokens > 0 ? std::min<uint64_t>(needs.longest_tokens, kLongTokens) : kLongTokens;
  return std::max<uint64_t>(longest, needs.page_size);
}

/// Returns the tokens of the first group that weigh as much as what the window groups have for each sequence; at most
/// those of a long one.
uint64_t balanced_tokens(std::span<const WindowSpec> windows, const PoolNeeds& needs) {
  uint64_t hundredths = 0;
  for (const WindowSpec& spec : windows) {
    const bool has_states = spec.kind == GroupKind::kState;
    const uint64_t page =
        has_states ? 100 * uint64_t{spec.state_tokens} : uint64_t{spec.token_percent} * needs.page_size;
    hundredths += pages_each(spec, needs) * page;
  }
  return std::clamp<uint64_t>(hundredths / 100, needs.page_size, long_tokens(needs));
}

uint64_t device_pages(const WindowSpec& spec, uint64_t sequences, uint64_t first_pages, const PoolNeeds& needs) {
  uint64_t pages = sequences * pages_each(spec, needs);
  if (spec.kind == GroupKind::kWindow) {
    // Sequences keep no more pages here than in the first group, but what they give up stays until a plan's end.
    pages = std::min(pages, first_pages + sequences * kNextWindowPages);
    pages += pages_of(needs.plan_tokens, needs.page_size);
  }
  return std::clamp<uint64_t>(pages, max_pages_alone(spec, needs), INT32_MAX);
}

}  // namespace

uint32_t kept_window_pages(uint32_t window, uint32_t page_size) {
  return static_cast<uint32_t>(pages_of(window - 1, page_size)) + 1;
}

uint64_t expected_sequences(std::span<const WindowSpec> windows, uint64_t first_pages, const PoolNeeds& needs) {
  const uint64_t tokens = first_pages * needs.page_size;
  uint64_t sequences = 0;
  if (needs.expected_tokens > 0) {
    sequences = pages_of(tokens, needs.expected_tokens);
  } else {
    const uint64_t balanced = balanced_tokens(windows, needs);
    const uint64_t running = std::min<uint64_t>(tokens / balanced, needs.max_running);
    const uint64_t cached = std::min<uint64_t>(tokens / (kCachedFraction * balanced),
                                               max_sequences(needs.max_running, needs.shares_prefixes));
    sequences = std::max({running, cached, tokens / long_tokens(needs)});
    if (!needs.shares_prefixes) sequences = std::min<uint64_t>(sequences, needs.max_running);
  }
  return std::clamp<uint64_t>(sequences, 1, std::max<uint64_t>(first_pages, 1));
}

std::vector<WindowPool> divide_pools(std::span<const WindowSpec> windows, PoolSizes first, const PoolNeeds& needs) {
  const uint64_t expected = expected_sequences(windows, first.device, needs);
  const uint64_t sequences = first.sequences > 0 ? first.sequences : expected;
  std::vector<WindowPool> pools;
  for (const WindowSpec& spec : windows) {
    const bool has_states = spec.kind == GroupKind::kState;
    WindowPool pool{.window = has_states ? state_window(needs.page_size) : spec.window, .pages = {}, .kind = spec.kind};
    pool.pages.device = static_cast<uint32_t>(device_pages(spec, sequences, first.device, needs));
    if (first.host > 0) {
      const uint64_t usual = device_pages(spec, expected, first.device, needs);
      const uint64_t share = uint64_t{first.host} * usual / std::max(first.device, 1u);
      pool.pages.host = static_cast<uint32_t>(std::clamp<uint64_t>(share, 1, INT32_MAX));
    }
    pools.push_back(pool);
  }
  return pools;
}

}  // namespace millrace::cache
