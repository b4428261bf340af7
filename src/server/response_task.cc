#include "server/response_task.h"

#include <utility>

#include "server/observe/server_metrics.h"
#include "server/worker.h"

namespace millrace::server {
namespace {

using openai::ApiError;

/// Whole responses with more logprobs than this are written on the worker: about a millisecond's work.
constexpr size_t kWorkerThresholdTokens = 256;

}  // namespace

ResponseTask::ResponseTask(const ResponseContext& context, GenerationSpec spec, ResponseSink& sink)
    : context_(context),
      spec_(std::move(spec)),
      sink_(sink),
      streams_(context.runtime, context.engine),
      writer_(spec_.make_writer(spec_.info, spec_.options)),
      comment_timer_(context.runtime,
                     [this] {
                       comment_due_ = true;
                       streams_.wake();
                     }),
      unfinished_(spec_.requests.size()) {
  choices_.reserve(unfinished_);
  for (size_t i = 0; i < unfinished_; ++i)
    choices_.emplace_back(spec_.options, spec_.prompt_of(i), static_cast<uint32_t>(i));
  if (!spec_.stream) full_choices_.resize(unfinished_);
  last_token_.resize(unfinished_);
  for (const TokenizedPrompt& prompt : spec_.prompts) sink_.record().prompt_tokens += prompt.ids.size();
  sink_.record().id = spec_.info.id;
}

size_t ResponseTask::abort() {
  size_t count = 0;
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (choices_[i].finished()) continue;
    if (context_.engine.abort(spec_.info.id + '-' + std::to_string(i))) ++count;
  }
  return count;
}

asio::awaitable<void> ResponseTask::run() {
  Failure failure = std::move(spec_.refusal);
  if (!failure) failure = submit_all();
  if (failure) {
    co_await send_failure(*std::move(failure));
    co_return;
  }
  streams_.spawn("disconnect watcher", sink_.watch([this] { streams_.wake(); }, [this] { probe_client(); }));
  if (spec_.stream) comment_timer_.expire_after(context_.comment_interval);
  bool failed = false;
  for (;;) {
    failure = process_events();
    if (!failure && context_.is_stopping) failure = ApiError{503, "the server is shutting down", ""};
    if (sink_.is_gone()) break;
    failed = failure.has_value();
    if (failure) {
      co_await send_failure(*std::move(failure));
      break;
    }
    if (unfinished_ == 0) break;
    if (std::exchange(comment_due_, false) && unsent_.empty()) {
      start_stream();
      writer_->append_keep_alive(unsent_);
    }
    if (unsent_.empty()) {
      co_await streams_.wait();
      continue;
    }
    const bool sent = co_await flush();
    if (!sent) break;
  }
  sink_.record().completion_tokens = usage().completion_tokens;
  if (!failed) record_end_metrics();
  if (unfinished_ == 0 && !sink_.is_gone()) co_await send_full_response();
  if (sink_.is_gone()) {
    sink_.record().status = 499;
    ++context_.metrics.disconnects;
  }
}

void ResponseTask::probe_client() {
  if (!stream_started_) return;
  comment_due_ = true;
  streams_.wake();
}

ResponseTask::Failure ResponseTask::submit_all() {
  for (sched::GenerateRequest& request : spec_.requests) {
    auto submitted = streams_.submit(std::move(request));
    if (submitted.has_error()) return openai::to_api_error(submitted.error());
  }
  spec_.requests = {};
  return std::nullopt;
}

ResponseTask::Failure ResponseTask::process_events() {
  while (auto arrival = streams_.take()) {
    if (Failure failure = process_event(*arrival)) return failure;
  }
  return std::nullopt;
}

ResponseTask::Failure ResponseTask::process_event(StreamSet::Arrival& arrival) {
  Choice& choice = choices_[arrival.index];
  record_event_metrics(arrival.index, arrival.event);
  const std::optional<Error> error = std::move(arrival.event.error);
  // A whole response that fails is an error and nothing else, and a failure before a stream's first token is a status.
  const bool is_lost = error && (!spec_.stream || (arrival.event.tokens.empty() && !choice.started()));
  if (is_lost) return openai::to_api_error(*error);
  ChoiceDelta& delta = spec_.stream ? delta_ : full_choices_[arrival.index];
  choice.consume(arrival.event, delta);
  if (choice.finished()) {
    --unfinished_;
    streams_.drop(arrival.index);
    context_.metrics.count_finish(*choice.finish());
    context_.metrics.generation_length.observe(choice.completion_tokens());
  }
  if (!spec_.stream) return std::nullopt;
  start_stream();
  const openai::Usage usage_so_far = writer_->needs_running_usage() ? usage() : openai::Usage{};
  writer_->append_delta(unsent_, view(arrival.index, delta), usage_so_far);
  delta_ = ChoiceDelta{};
  if (error && !choice.finished()) return openai::to_api_error(*error);
  return std::nullopt;
}

void ResponseTask::record_event_metrics(size_t index, const sched::GenerateEvent& event) {
  ServerMetrics& metrics = context_.metrics;
  const auto now = context_.runtime.now();
  metrics.generation_tokens += event.tokens.size();
  if (choices_[index].started()) {
    if (!event.tokens.empty()) metrics.inter_token_latency.observe(async::to_seconds(now - last_token_[index]));
  } else if (!event.tokens.empty() || (!event.error && event.finish != sched::FinishReason::kAbort)) {
    metrics.queue_time.observe(static_cast<double>(event.timings.queued_us) * 1e-6);
    metrics.prefill_time.observe(static_cast<double>(event.timings.prefill_us) * 1e-6);
    if (!sink_.record().first_token) {
      sink_.record().first_token = now;
      metrics.time_to_first_token.observe(async::to_seconds(now - sink_.record().begin));
    }
    if (index % spec_.n == 0) {
      const size_t prompt_tokens = spec_.prompt_of(index).ids.size();
      metrics.prompt_tokens += prompt_tokens;
      metrics.cached_tokens += event.cached_tokens;
      metrics.prompt_length.observe(static_cast<double>(prompt_tokens));
    }
  }
  last_token_[index] = now;
}

void ResponseTask::record_end_metrics() {
  ServerMetrics& metrics = context_.metrics;
  const auto now = context_.runtime.now();
  for (const Choice& choice : choices_) {
    if (choice.finished()) continue;
    metrics.count_finish(sched::FinishReason::kAbort);
    metrics.generation_length.observe(choice.completion_tokens());
  }
  metrics.e2e_latency.observe(async::to_seconds(now - sink_.record().begin));
  if (sink_.record().first_token) metrics.decode_time.observe(async::to_seconds(now - *sink_.record().first_token));
}

void ResponseTask::start_stream() {
  if (!std::exchange(stream_started_, true)) writer_->append_start(unsent_, usage());
}

asio::awaitable<void> ResponseTask::send_failure(ApiError error) {
  sink_.record().status = error.status;
  if (spec_.fails_in_stream) start_stream();
  if (stream_started_) {
    writer_->append_failure(unsent_, error);
    sink_.close_after_response();
    const bool sent = co_await flush();
    if (sent) co_await sink_.end_events();
    co_return;
  }
  if (context_.is_stopping) sink_.close_after_response();
  co_await sink_.send_error(error);
}

asio::awaitable<void> ResponseTask::send_full_response() {
  if (spec_.stream) {
    start_stream();
    writer_->append_end(unsent_, usage());
    const bool sent = co_await flush();
    if (sent) co_await sink_.end_events();
    co_return;
  }
  HttpResponse response;
  if (logprob_token_count() > kWorkerThresholdTokens) {
    co_await context_.worker.run([&] { write_full_response(response.body); });
  } else {
    write_full_response(response.body);
  }
  co_await sink_.send(std::move(response));
}

size_t ResponseTask::logprob_token_count() const {
  size_t count = 0;
  for (const ChoiceDelta& content : full_choices_) count += content.logprobs.size() + content.prompt_logprobs.size();
  return count;
}

void ResponseTask::write_full_response(std::string& out) {
  std::vector<openai::ChoiceView> views;
  for (size_t i = 0; i < choices_.size(); ++i) views.push_back(view(i, full_choices_[i]));
  writer_->append_response(out, views, usage());
}

asio::awaitable<bool> ResponseTask::flush() {
  const bool sent = co_await sink_.write_events(unsent_);
  comment_timer_.expire_after(context_.comment_interval);
  co_return sent;
}

openai::Usage ResponseTask::usage() const {
  openai::Usage total;
  for (const TokenizedPrompt& prompt : spec_.prompts) total.prompt_tokens += prompt.ids.size();
  for (size_t i = 0; i < choices_.size(); ++i) {
    total.completion_tokens += choices_[i].completion_tokens();
    if (i % spec_.n == 0) total.cached_tokens += choices_[i].cached_tokens();
    if (spec_.options.output_format.reasoning) {
      total.reasoning_tokens = total.reasoning_tokens.value_or(0) + choices_[i].reasoning_tokens();
    }
    if (spec_.options.has_prediction) {
      if (!total.predictions) total.predictions.emplace();
      total.predictions->accepted += choices_[i].accepted_predictions();
      total.predictions->rejected += choices_[i].rejected_predictions();
    }
  }
  return total;
}

openai::ChoiceView ResponseTask::view(size_t index, const ChoiceDelta& content) const {
  return {static_cast<uint32_t>(index), content, spec_.prompt_of(index)};
}

}  // namespace millrace::server
