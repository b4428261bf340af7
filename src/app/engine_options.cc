#include "app/engine_options.h"

#include <algorithm>
#include <random>

#include "model/cache_groups.h"
#include "sched/scheduler/chunker.h"

namespace millrace::app {
namespace {

using namespace std::chrono_literals;

constexpr async::Duration kHeartbeat = 500ms;
/// The length of requests that --max-total-tokens alone should keep from running at once.
constexpr uint64_t kShortTokens = 256;

/// Returns the pages that --max-total-tokens asks for; 0: the flag is not given, or asks for less than a page.
uint64_t wanted_pages(const EngineOptions& options) {
  return std::min<uint64_t>(static_cast<uint64_t>(options.max_total_tokens) / options.stage.page_size, INT32_MAX);
}

uint32_t window_of(const EngineOptions& options) {
  return static_cast<uint32_t>(options.pp_size + options.async_batch_depth);
}

}  // namespace

Result<std::unique_ptr<model::Checkpoint>> open_checkpoint(const EngineOptions& options) {
  const std::filesystem::path& folder = options.weights_path.empty() ? options.model_path : options.weights_path;
  return model::Checkpoint::open(folder, options.weight_ranges);
}

Result<void> adapt_to_encoder(const model::ModelConfig& config, EngineOptions& options) {
  if (options.hierarchical_cache) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--enable-hierarchical-cache: {} is an encoder, whose prefixes cannot be cached",
                      config.architecture);
  }
  const int32_t longest = options.context_length > 0 ? options.context_length : config.context_length();
  sched::SchedulerOptions& scheduler = options.head.scheduler;
  scheduler.chunking = sched::Chunking::kFixed;
  scheduler.cuts_prompts = false;
  scheduler.chunked_prefill_size = std::max(scheduler.chunked_prefill_size, static_cast<uint32_t>(longest));
  scheduler.share_prefixes = false;
  return {};
}

sched::StageConfig stage_config(const EngineOptions& options, uint32_t sampling_vocab) {
  const sched::SchedulerOptions& scheduler = options.head.scheduler;
  sched::StageConfig stage = options.stage;
  stage.rank_count = static_cast<uint32_t>(options.tp_size);
  stage.max_draft_rows = sched::max_draft_rows(scheduler.draft_tokens, stage.max_running);
  stage.max_batch_tokens = sched::max_prompt_tokens(scheduler.chunking, scheduler.chunked_prefill_size) +
                           stage.max_running + stage.max_draft_rows;
  stage.window = window_of(options);
  stage.wanted_pages = static_cast<uint32_t>(wanted_pages(options));
  stage.shares_prefixes = scheduler.share_prefixes;
  stage.context_length = static_cast<uint32_t>(options.context_length);
  stage.sampling_vocab = sampling_vocab;
  stage.watchdog = options.head.watchdog;
  stage.has_store = options.node.storage.enabled();
  stage.memory_fraction = memory_fraction(options);
  return stage;
}

uint32_t pool_pages(const EngineOptions& options, int32_t longest, uint64_t capacity) {
  const uint64_t page_size = options.stage.page_size;
  // More than every running request at full length is of use to the prefix cache only, and soon to nobody.
  const uint64_t pages_each = (static_cast<uint64_t>(longest) + page_size - 1) / page_size;
  const uint64_t useful =
      pages_each * cache::max_sequences(options.stage.max_running, options.head.scheduler.share_prefixes);
  const uint64_t wanted = options.max_total_tokens > 0 ? wanted_pages(options) : capacity;
  return static_cast<uint32_t>(std::min({wanted, useful, uint64_t{INT32_MAX}}));
}

uint32_t window_sequences(const EngineOptions& options, std::span<const WindowSpec> windows, uint32_t page_count,
                          uint32_t capacity) {
  const sched::StageConfig stage = stage_config(options, 0);
  if (windows.empty() || stage.wanted_pages == 0 || stage.expected_tokens > 0) return 0;
  const uint64_t usual = cache::expected_sequences(windows, page_count, sched::pool_needs(stage));
  const uint64_t short_requests = uint64_t{page_count} * stage.page_size / kShortTokens;
  const uint64_t wanted = std::max(usual, std::min<uint64_t>(stage.max_running, short_requests));
  return static_cast<uint32_t>(std::clamp<uint64_t>(wanted, 1, std::max(capacity, 1u)));
}

double memory_fraction(const EngineOptions& options) {
  if (options.stage.memory_fraction > 0 || options.max_total_tokens <= 0) return options.stage.memory_fraction;
  return 1;
}

sched::HeadOptions head_options(const EngineOptions& options, const model::ModelConfig& config, cache::PoolSizes pages,
                                uint32_t max_context) {
  sched::HeadOptions head = options.head;
  sched::SchedulerOptions& scheduler = head.scheduler;
  scheduler.page_size = options.stage.page_size;
  scheduler.page_count = pages.device;
  scheduler.host_page_count = pages.host;
  scheduler.window_sequences = pages.sequences;
  scheduler.windows = model::CacheGroups(config).windows();
  scheduler.longest_tokens = static_cast<uint32_t>(options.context_length);
  scheduler.expected_tokens = options.stage.expected_tokens;
  scheduler.max_running = options.stage.max_running;
  scheduler.window = window_of(options);
  scheduler.max_context_length = max_context;
  scheduler.context_length =
      static_cast<uint32_t>(std::min<uint64_t>(max_context, uint64_t{pages.device} * scheduler.page_size));
  scheduler.stage_count = static_cast<uint32_t>(options.pp_size);
  scheduler.vocab_size = static_cast<uint32_t>(config.vocab_size);
  scheduler.hidden_size = static_cast<uint32_t>(config.hidden_size);
  scheduler.has_output_head = options.stage.has_output_head;
  scheduler.has_store = options.node.storage.enabled();
  scheduler.draft_history = options.draft_algorithm == DraftAlgorithm::kNgram;
  // Nodes outlive heads, and know by the ids of copies which head asked them last.
  std::random_device random;
  scheduler.first_copy_id = (uint64_t{random()} << 31 | random()) + 1;
  if (scheduler.prefetch_policy != sched::PrefetchPolicy::kTimeout) head.prefetch_timeout = {};
  head.heartbeat = kHeartbeat;
  return head;
}

}  // namespace millrace::app
