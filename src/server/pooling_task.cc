#include "server/pooling_task.h"

#include <algorithm>
#include <utility>

#include "server/observe/server_metrics.h"

namespace millrace::server {
namespace {

using openai::ApiError;

/// Prompts of one request that are at the engine at once: enough to fill every micro-batch, and a part of its queue.
constexpr size_t kMaxPromptsAtEngine = 256;

}  // namespace

PoolingTask::PoolingTask(const ResponseContext& context, PoolingSpec spec, Exchange& exchange)
    : context_(context),
      spec_(std::move(spec)),
      exchange_(exchange),
      streams_(context.runtime, context.engine),
      vectors_(spec_.requests.size()) {
  for (const sched::GenerateRequest& request : spec_.requests) prompt_sizes_.push_back(request.prompt.size());
  exchange_.record.prompt_tokens = spec_.info.prompt_tokens;
  exchange_.record.id = spec_.info.id;
}

size_t PoolingTask::abort() {
  is_aborted_ = true;
  size_t count = 0;
  for (size_t i = 0; i < submitted_; ++i) {
    if (vectors_[i].empty() && context_.engine.abort(spec_.info.id + '-' + std::to_string(i))) ++count;
  }
  wake();
  return count;
}

asio::awaitable<std::optional<ApiError>> PoolingTask::run() {
  streams_.spawn("disconnect watcher", exchange_.connection.watch([this] { streams_.wake(); }));
  for (;;) {
    Failure failure = process_events();
    if (!failure && context_.is_stopping) failure = ApiError{503, "the server is shutting down", ""};
    if (failure) co_return failure;
    if (finished_ == vectors_.size() || exchange_.connection.peer_gone()) break;
    const size_t before = submitted_;
    failure = submit_more();
    if (failure) co_return failure;
    // An event that had arrived already has woken no waiter.
    if (submitted_ == before) co_await streams_.wait();
  }
  context_.metrics.e2e_latency.observe(async::to_seconds(context_.runtime.now() - exchange_.record.begin));
  co_return std::nullopt;
}

PoolingTask::Failure PoolingTask::submit_more() {
  if (is_aborted_) return ApiError{409, "the request was aborted", ""};
  const size_t end = std::min(vectors_.size(), finished_ + kMaxPromptsAtEngine);
  for (; submitted_ < end; ++submitted_) {
    auto submitted = streams_.submit(std::move(spec_.requests[submitted_]));
    if (submitted.has_error()) return openai::to_api_error(submitted.error());
  }
  return std::nullopt;
}

PoolingTask::Failure PoolingTask::process_events() {
  while (auto arrival = streams_.take()) {
    if (Failure failure = process_event(*arrival)) return failure;
  }
  return std::nullopt;
}

PoolingTask::Failure PoolingTask::process_event(StreamSet::Arrival& arrival) {
  sched::GenerateEvent& event = arrival.event;
  if (event.error) return openai::to_api_error(*event.error);
  if (!event.finish) return std::nullopt;
  context_.metrics.count_finish(*event.finish);
  if (event.pooled.empty()) return ApiError{409, "the request was aborted", ""};
  record_metrics(event, arrival.index);
  vectors_[arrival.index] = std::move(event.pooled);
  ++finished_;
  streams_.drop(arrival.index);
  return std::nullopt;
}

void PoolingTask::record_metrics(const sched::GenerateEvent& event, size_t index) {
  ServerMetrics& metrics = context_.metrics;
  metrics.queue_time.observe(static_cast<double>(event.timings.queued_us) * 1e-6);
  metrics.prefill_time.observe(static_cast<double>(event.timings.prefill_us) * 1e-6);
  metrics.prompt_tokens += prompt_sizes_[index];
  metrics.cached_tokens += event.cached_tokens;
  metrics.prompt_length.observe(static_cast<double>(prompt_sizes_[index]));
}

}  // namespace millrace::server
