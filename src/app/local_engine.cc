#include "app/local_engine.h"

#include <algorithm>

#include "base/log.h"
#include "model/tensor_list.h"

namespace millrace::app {
namespace {

using namespace std::chrono_literals;

constexpr async::Duration kHeartbeat = 500ms;
uint32_t window(const EngineOptions& options) {
  return static_cast<uint32_t>(options.pp_size + options.async_batch_depth);
}

uint32_t max_batch_tokens(const EngineOptions& options) {
  return static_cast<uint32_t>(options.chunked_prefill_size + options.max_running_requests);
}

}  // namespace

LocalEngine::LocalEngine(const EngineOptions& options, model::ModelConfig config)
    : options_(options), config_(std::move(config)) {}

Result<std::unique_ptr<LocalEngine>> LocalEngine::create(const EngineOptions& options, size_t vocab_size) {
  auto config = model::read_config(options.model_path);
  if (config.has_error()) return config.error();
  std::unique_ptr<LocalEngine> engine(new LocalEngine(options, std::move(*config)));
  RETURN_IF_ERROR(engine->load());
  const auto pages = engine->page_count();
  if (pages.has_error()) return pages.error();
  RETURN_IF_ERROR(engine->start_ring(vocab_size, *pages));
  return engine;
}

LocalEngine::~LocalEngine() {
  if (ring_) ring_->stop();
  head_thread_.join();
  if (node_) node_->join();
  ring_.reset();
}

Result<void> LocalEngine::load() {
  auto checkpoint = model::Checkpoint::open(options_.model_path);
  if (checkpoint.has_error()) return checkpoint.error();
  checkpoint_ = std::move(*checkpoint);
  const auto ranges = options_.layer_partition.empty()
                          ? model::divide_layers(config_.layer_count, options_.pp_size)
                          : model::parse_partition(options_.layer_partition, config_.layer_count, options_.pp_size);
  if (ranges.has_error()) return ranges.error();
  NodeStagesOptions node;
  node.spans = model::stage_spans(*ranges);
  node.dtype = options_.dtype;
  node.threads = options_.threads;
  node.max_batch_tokens = static_cast<int32_t>(max_batch_tokens(options_));
  node.max_running = options_.max_running_requests;
  auto loaded = NodeStages::load(*checkpoint_, config_, node);
  if (loaded.has_error()) return loaded.error();
  node_ = std::move(*loaded);
  return {};
}

Result<uint32_t> LocalEngine::page_count() const {
  const auto page_size = static_cast<uint64_t>(options_.page_size);
  const uint64_t longest = static_cast<uint64_t>(config_.context_length());
  // More than every running request at full length can never be used.
  const uint64_t useful = (longest + page_size - 1) / page_size * static_cast<uint64_t>(options_.max_running_requests);
  const uint64_t wanted = options_.max_total_tokens > 0
                              ? static_cast<uint64_t>(options_.max_total_tokens) / page_size
                              : node_->page_capacity(options_.page_size, options_.memory_fraction);
  const uint64_t pages = std::min({wanted, useful, uint64_t{1} << 31});
  if (pages == 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "no room for a KV cache page of {} tokens: raise --max-total-tokens or --mem-fraction-static",
                      page_size);
  }
  return static_cast<uint32_t>(pages);
}

Result<void> LocalEngine::start_ring(size_t vocab_size, uint32_t page_count) {
  const auto page_size = static_cast<uint32_t>(options_.page_size);
  const auto model_context = static_cast<uint32_t>(config_.context_length());
  if (options_.context_length > config_.context_length()) {
    return make_error(ErrorCode::kInvalidArgument, "--context-length {}: the model was made for {} tokens",
                      options_.context_length, model_context);
  }
  const uint64_t capacity = uint64_t{page_count} * page_size;
  const uint32_t wanted = options_.context_length > 0 ? static_cast<uint32_t>(options_.context_length) : model_context;
  const auto context = static_cast<uint32_t>(std::min<uint64_t>(wanted, capacity));
  if (context < wanted) {
    log::warn("the KV cache holds {} tokens: requests are limited to them instead of {}", context, wanted);
  }
  const auto drawable = static_cast<uint32_t>(std::min<size_t>(vocab_size, static_cast<size_t>(config_.vocab_size)));

  sched::HeadOptions head;
  head.scheduler = {page_size,
                    page_count,
                    static_cast<uint32_t>(options_.max_running_requests),
                    window(options_),
                    static_cast<uint32_t>(options_.chunked_prefill_size),
                    context};
  head.model = {config_.architecture,     context, drawable, model::parameter_count(config_),
                static_cast<uint32_t>(options_.pp_size), capacity};
  head.max_queued = static_cast<uint32_t>(options_.max_queued_requests);
  head.heartbeat = kHeartbeat;
  head.watchdog = std::chrono::duration_cast<async::Duration>(std::chrono::duration<double>(options_.watchdog_timeout_s));
  const sched::StageBounds bounds{head.scheduler.max_running, page_size, page_count, max_batch_tokens(options_),
                                  static_cast<uint32_t>(config_.vocab_size)};

  const sched::RingShape shape{static_cast<uint32_t>(options_.pp_size), head.scheduler.window, bounds};
  node_->make_stages(head_thread_.runtime(), shape, drawable);
  former_ = std::make_unique<sched::InProcessFormer>(head_thread_.runtime(), node_->stages(), shape);
  ring_ = std::make_unique<sched::Ring>(head_thread_.runtime(), head, *former_);
  ring_->start();
  log::info("KV cache: {} pages of {} tokens; context {}; window of {} micro-batches", page_count, page_size, context,
            head.scheduler.window);
  return {};
}

}  // namespace millrace::app
