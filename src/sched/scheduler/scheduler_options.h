#pragma once

#include <cstdint>
#include <vector>

#include "base/enum_names.h"
#include "base/group_kind.h"
#include "cache/window_pool.h"
#include "cache/write_policy.h"
#include "sched/scheduler/chunking.h"
#include "sched/scheduler/queue_policy.h"

namespace millrace::sched {

/// How long the prefetch of a waiting request from the page store may delay the request's admission.
enum class PrefetchPolicy : uint8_t {
  kBestEffort,    ///< no delay: pages that have not arrived are computed
  kWaitComplete,  ///< until the prefetch has ended
  kTimeout,       ///< until the prefetch has ended or HeadOptions::prefetch_timeout has passed
};

inline constexpr EnumName<PrefetchPolicy> kPrefetchPolicyNames[] = {
    {PrefetchPolicy::kBestEffort, "best_effort"},
    {PrefetchPolicy::kWaitComplete, "wait_complete"},
    {PrefetchPolicy::kTimeout, "timeout"},
};
constexpr std::span<const EnumName<PrefetchPolicy>> enum_names(PrefetchPolicy) {
  return kPrefetchPolicyNames;
}

/// What a Scheduler is built with. All counts are per ring; pages and slots are the same on every stage.
struct SchedulerOptions {
  uint32_t page_size = 64;            ///< tokens per page
  uint32_t page_count = 0;            ///< device pages of the first cache group
  uint32_t max_running = 0;           ///< slots: sequences that may run at once
  uint32_t window = 1;                ///< plans that the head keeps in flight
  uint32_t chunked_prefill_size = 0;  ///< prompt tokens per plan
  uint32_t context_length = 0;        ///< prompt and output of one sequence; the pages hold at least that many tokens
  uint32_t max_context_length = 0;    ///< context_length where pages suffice; 0: the given one
  uint32_t stage_count = 1;
  uint32_t vocab_size = 0;      ///< token ids that every stage knows; 0: no bound
  uint32_t hidden_size = 0;     ///< length of pooled vectors; 0: unknown
  bool has_output_head = true;  ///< the last stage can sample and score; else it only pools
  Chunking chunking = Chunking::kFixed;
  bool cuts_prompts = true;       ///< ChunkingOptions::cuts_prompts; false: chunked_prefill_size holds every prompt
  double chunk_smoothing = 0.75;  ///< ChunkingOptions::smoothing
  QueuePolicy policy = QueuePolicy::kFcfs;
  bool spread_decodes = true;    ///< over the number of plans that is fastest; false: a plan takes all ready sequences
  double new_token_ratio = 0.7;  ///< initial share of max_tokens that running requests are expected to generate
  bool share_prefixes = true;    ///< keep computed pages for requests with the same prefix
  uint32_t host_page_count = 0;  ///< host pages of the first cache group; 0: there is no host tier
  std::vector<WindowSpec> windows;  ///< of the model's window groups
  uint32_t snapshot_pages = 0;      ///< state groups: pages between two further snapshots; 0: none
  uint32_t longest_tokens = 0;      ///< by which window groups have room (cache::PoolNeeds)
  uint32_t expected_tokens = 0;     ///< length of a typical sequence (cache::PoolNeeds)
  uint32_t window_sequences = 0;    ///< cache::PoolSizes::sequences
  bool has_store = false;           ///< the stages have a page store after the host tier
  cache::WritePolicy write_policy = cache::WritePolicy::kWriteThrough;
  PrefetchPolicy prefetch_policy = PrefetchPolicy::kBestEffort;
  uint32_t processors = 0;     ///< processors that all stages share; 0: unknown, or the stages are on several machines
  uint32_t stage_threads = 1;  ///< compute threads of each stage
  uint64_t first_copy_id = 1;  ///< cache::PrefixCacheOptions::first_copy_id
  uint32_t draft_tokens = 0;   ///< drafts that one decode step of one sequence may have
  bool draft_history = false;  ///< drafts also come from the sequence's own tokens
  /// Steps (grammar::WorkBudget) of work on token masks at a time: to book an output, to find drafts, and between
  /// turns.
  uint64_t mask_steps = 20'000;
};

/// Returns the largest number of draft rows in one micro-batch.
[[nodiscard]] uint32_t max_draft_rows(uint32_t draft_tokens, uint32_t max_running);
/// Returns the largest number of rows in one micro-batch.
[[nodiscard]] uint32_t max_plan_tokens(const SchedulerOptions& options);
/// Returns the pools of the first cache group.
[[nodiscard]] inline cache::PoolSizes first_pools(const SchedulerOptions& options) {
  return {.device = options.page_count, .host = options.host_page_count, .sequences = options.window_sequences};
}
/// Returns the pools of the window groups where the first group has `pages`. Every stage has the same.
[[nodiscard]] std::vector<cache::WindowPool> window_pools(const SchedulerOptions& options, cache::PoolSizes pages);

}  // namespace millrace::sched
