#include "sched/scheduler/scheduler_options.h"

#include <algorithm>

#include "cache/pool_division.h"
#include "sched/scheduler/chunker.h"

namespace millrace::sched {
namespace {

constexpr uint64_t kMaxDraftRows = 128;

}  // namespace

uint32_t max_draft_rows(uint32_t draft_tokens, uint32_t max_running) {
  return static_cast<uint32_t>(std::min(uint64_t{draft_tokens} * max_running, kMaxDraftRows));
}

uint32_t max_plan_tokens(const SchedulerOptions& options) {
  return max_prompt_tokens(options.chunking, options.chunked_prefill_size) + options.max_running +
         max_draft_rows(options.draft_tokens, options.max_running);
}

std::vector<cache::WindowPool> window_pools(const SchedulerOptions& options, cache::PoolSizes pages) {
  return cache::divide_pools(options.windows, pages,
                             {.page_size = options.page_size,
                              .plan_tokens = max_plan_tokens(options),
                              .max_running = options.max_running,
                              .shares_prefixes = options.share_prefixes,
                              .longest_tokens = options.longest_tokens,
                              .expected_tokens = options.expected_tokens});
}

}  // namespace millrace::sched
