#include "sched/scheduler/pool_room.h"

#include <algorithm>

#include "cache/pool_division.h"
#include "sched/scheduler/chunker.h"

namespace millrace::sched {
namespace {

/// Lengths of requests whose concurrency is reported, below the context's.
constexpr uint32_t kReportedTokens[] = {1024, 8192, 65'536};

size_t pages_for(const SchedulerOptions& options, uint64_t tokens) {
  return (tokens + options.page_size - 1) / options.page_size;
}

}  // namespace

size_t running_window_pages(const SchedulerOptions& options, const WindowSpec& spec, uint64_t tokens) {
  if (spec.kind == GroupKind::kState) return cache::kRunningStatePages;
  const size_t kept =
      cache::kept_window_pages(spec.window, options.page_size) + pages_for(options, options.draft_tokens);
  return std::min(kept, pages_for(options, tokens)) + pages_for(options, uint64_t{options.draft_tokens} + 1);
}

size_t prompt_window_pages(const SchedulerOptions& options, const WindowSpec& spec) {
  if (spec.kind == GroupKind::kState) return 0;
  return pages_for(options, max_prompt_tokens(options.chunking, options.chunked_prefill_size));
}

Concurrency concurrency_at(const SchedulerOptions& options, uint32_t tokens) {
  Concurrency result{.tokens = tokens, .requests = options.max_running};
  // A request alone needs its own pages only.
  const auto bound = [&result](size_t requests, ConcurrencyLimit limit) {
    if (requests >= result.requests) return;
    result.requests = static_cast<uint32_t>(std::max<size_t>(requests, 1));
    result.limit = limit;
  };
  bound(options.page_count / std::max<size_t>(pages_for(options, tokens), 1), ConcurrencyLimit::kTokens);
  const std::vector<cache::WindowPool> pools = window_pools(options, first_pools(options));
  for (size_t i = 0; i < pools.size(); ++i) {
    const WindowSpec& spec = options.windows[i];
    const size_t of_prompts = std::min<size_t>(prompt_window_pages(options, spec), pools[i].pages.device);
    bound((pools[i].pages.device - of_prompts) / running_window_pages(options, spec, tokens),
          spec.kind == GroupKind::kState ? ConcurrencyLimit::kStates : ConcurrencyLimit::kWindow);
  }
  return result;
}

std::vector<Concurrency> concurrency(const SchedulerOptions& options) {
  std::vector<Concurrency> all;
  for (const uint32_t tokens : kReportedTokens) {
    if (tokens < options.context_length) all.push_back(concurrency_at(options, tokens));
  }
  all.push_back(concurrency_at(options, options.context_length));
  return all;
}

}  // namespace millrace::sched
