#include "app/engine_options.h"

#include <algorithm>
#include <random>

namespace millrace::app {
namespace {

using namespace std::chrono_literals;

constexpr async::Duration kHeartbeat = 500ms;
/// Cached prefixes are kept up to so many times what the running requests can hold.
constexpr uint64_t kCachedPerRunning = 8;

}  // namespace

async::Duration duration_of(double seconds) {
  return std::chrono::duration_cast<async::Duration>(std::chrono::duration<double>(seconds));
}

uint32_t window(const EngineOptions& options) {
  return static_cast<uint32_t>(options.pp_size + options.async_batch_depth);
}

uint32_t max_batch_tokens(const EngineOptions& options) {
  const auto size = static_cast<uint32_t>(options.chunked_prefill_size);
  return sched::max_prompt_tokens(*sched::parse_chunking(options.chunking), size) +
         static_cast<uint32_t>(options.max_running_requests) + max_draft_rows(options);
}

uint32_t max_draft_rows(const EngineOptions& options) {
  return sched::max_draft_rows(static_cast<uint32_t>(options.draft_tokens),
                               static_cast<uint32_t>(options.max_running_requests));
}

uint32_t pool_pages(const EngineOptions& options, int32_t longest, uint64_t capacity) {
  const auto page_size = static_cast<uint64_t>(options.page_size);
  // More than every running request at full length is of use to the prefix cache only, and soon to nobody.
  const uint64_t pages_each = (static_cast<uint64_t>(longest) + page_size - 1) / page_size;
  uint64_t useful = pages_each * static_cast<uint64_t>(options.max_running_requests);
  if (options.radix_cache) useful *= kCachedPerRunning;
  const uint64_t wanted =
      options.max_total_tokens > 0 ? static_cast<uint64_t>(options.max_total_tokens) / page_size : capacity;
  return static_cast<uint32_t>(std::min({wanted, useful, uint64_t{INT32_MAX}}));
}

sched::HeadOptions head_options(const EngineOptions& options, const model::ModelConfig& config, uint32_t page_count,
                                uint32_t host_page_count, uint32_t context_length) {
  sched::HeadOptions head;
  head.scheduler = {static_cast<uint32_t>(options.page_size),
                    page_count,
                    static_cast<uint32_t>(options.max_running_requests),
                    window(options),
                    static_cast<uint32_t>(options.chunked_prefill_size),
                    context_length,
                    static_cast<uint32_t>(options.pp_size),
                    static_cast<uint32_t>(config.vocab_size)};
  head.scheduler.chunking = *sched::parse_chunking(options.chunking);
  head.scheduler.chunk_smoothing = options.chunk_smoothing;
  head.scheduler.policy = *sched::parse_queue_policy(options.schedule_policy);
  head.scheduler.share_prefixes = options.radix_cache;
  head.scheduler.host_page_count = host_page_count;
  head.scheduler.has_store = options.storage.enabled();
  head.scheduler.draft_tokens = static_cast<uint32_t>(options.draft_tokens);
  head.scheduler.draft_history = options.draft_algorithm == "ngram";
  // Nodes outlive heads, and know by the ids of copies which head asked them last.
  std::random_device random;
  head.scheduler.first_copy_id = (uint64_t{random()} << 31 | random()) + 1;
  head.scheduler.write_policy = *cache::parse_write_policy(options.write_policy);
  head.scheduler.prefetch_policy = *sched::parse_prefetch_policy(options.prefetch_policy);
  if (head.scheduler.prefetch_policy == sched::PrefetchPolicy::kTimeout) {
    head.prefetch_timeout = duration_of(options.prefetch_timeout_s);
  }
  head.queue_timeout = duration_of(options.queue_timeout_s);
  head.run_timeout = duration_of(options.run_timeout_s);
  head.max_queued = static_cast<uint32_t>(options.max_queued_requests);
  head.heartbeat = kHeartbeat;
  head.watchdog = duration_of(options.watchdog_timeout_s);
  return head;
}

}  // namespace millrace::app
