#include "server/response_task.h"

#include <algorithm>

namespace millrace::server {
namespace {

using openai::ApiError;

/// Above this the logprobs of a whole answer are written on the worker: about a millisecond's work.
constexpr size_t kWorkerThresholdTokens = 256;

double seconds(async::Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

ResponseTask::ResponseTask(RequestManager& generator, GenerationSpec spec, Connection& connection,
                           RequestRecord& record, const RequestManager::Decorator& add_common_headers)
    : request_manager_(generator),
      spec_(std::move(spec)),
      connection_(connection),
      record_(record),
      add_common_headers_(add_common_headers),
      streams_(generator.runtime_, *generator.service_.engine),
      writer_(spec_.info, spec_.options, spec_.include_usage, spec_.continuous_usage),
      comment_timer_(generator.runtime_,
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
  for (const TokenizedPrompt& prompt : spec_.prompts) record_.prompt_tokens += prompt.ids.size();
  record_.id = spec_.info.id;
  request_manager_.active_.emplace(spec_.info.id, this);
}

ResponseTask::~ResponseTask() {
  request_manager_.active_.erase(spec_.info.id);
}

asio::awaitable<void> ResponseTask::finish() {
  return streams_.finish();
}

size_t ResponseTask::abort() {
  size_t count = 0;
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (choices_[i].finished()) continue;
    if (request_manager_.service_.engine->abort(spec_.info.id + '-' + std::to_string(i))) ++count;
  }
  return count;
}

asio::awaitable<void> ResponseTask::run() {
  if (Failure failure = submit_all()) {
    co_await send_failure(*std::move(failure));
    co_return;
  }
  streams_.spawn("disconnect watcher", connection_.watch([this] { streams_.wake(); }));
  if (spec_.stream) comment_timer_.expire_after(request_manager_.options_.comment_interval);
  for (;;) {
    Failure failure = process_events();
    if (!failure && request_manager_.refusing_) failure = ApiError{503, "the server is shutting down", ""};
    if (connection_.peer_gone()) break;
    if (failure) {
      co_await send_failure(*std::move(failure));
      break;
    }
    if (unfinished_ == 0) break;
    if (std::exchange(comment_due_, false) && unsent_.empty()) unsent_ = ":\n\n";
    if (unsent_.empty()) {
      co_await streams_.wait();
      continue;
    }
    const bool sent = co_await flush();
    if (!sent) break;
  }
  record_.completion_tokens = usage().completion_tokens;
  if (unfinished_ == 0 && !connection_.peer_gone()) {
    record_end_metrics();
    co_await send_full_response();
  }
  if (connection_.peer_gone()) {
    record_.keep_alive = false;
    record_.status = 499;
    ++request_manager_.metrics_.disconnects;
  }
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
  // A whole answer that fails is an error and nothing else, and a failure before a stream's first token is a status.
  const bool is_lost = error && (!spec_.stream || (arrival.event.tokens.empty() && !choice.started()));
  if (is_lost) return openai::to_api_error(*error);
  ChoiceDelta& delta = spec_.stream ? delta_ : full_choices_[arrival.index];
  choice.consume(arrival.event, delta);
  if (choice.finished()) {
    --unfinished_;
    streams_.drop(arrival.index);
    request_manager_.metrics_.count_finish(*choice.finish());
    request_manager_.metrics_.generation_length.observe(choice.completion_tokens());
  }
  if (!spec_.stream) return std::nullopt;
  writer_.append_delta(unsent_, view(arrival.index, delta), spec_.continuous_usage ? usage() : openai::Usage{});
  delta_ = ChoiceDelta{};
  if (error && !choice.finished()) return openai::to_api_error(*error);
  return std::nullopt;
}

void ResponseTask::record_event_metrics(size_t index, const sched::GenerateEvent& event) {
  Metrics& metrics = request_manager_.metrics_;
  const auto now = request_manager_.runtime_.now();
  metrics.generation_tokens += event.tokens.size();
  if (choices_[index].started()) {
    if (!event.tokens.empty()) metrics.inter_token_latency.observe(seconds(now - last_token_[index]));
  } else if (!event.tokens.empty() || (!event.error && event.finish != sched::FinishReason::kAbort)) {
    metrics.queue_time.observe(static_cast<double>(event.timings.queued_us) * 1e-6);
    metrics.prefill_time.observe(static_cast<double>(event.timings.prefill_us) * 1e-6);
    if (!record_.first_token) {
      record_.first_token = now;
      metrics.time_to_first_token.observe(seconds(now - record_.begin));
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
  Metrics& metrics = request_manager_.metrics_;
  const auto now = request_manager_.runtime_.now();
  metrics.e2e_latency.observe(seconds(now - record_.begin));
  if (record_.first_token) metrics.decode_time.observe(seconds(now - *record_.first_token));
}

asio::awaitable<void> ResponseTask::send_failure(ApiError error) {
  record_.status = error.status;
  if (stream_open_ || !unsent_.empty()) {
    openai::ChunkWriter::append_failure(unsent_, error);
    record_.keep_alive = false;
    bool sent = co_await flush();
    if (sent) sent = co_await connection_.end_stream();
    co_return;
  }
  HttpResponse response = openai::error_response(error);
  if (request_manager_.refusing_) record_.keep_alive = false;
  add_common_headers_(response);
  const bool sent = co_await connection_.send(response, false, record_.keep_alive, record_.http11);
  record_.keep_alive = record_.keep_alive && sent;
}

asio::awaitable<void> ResponseTask::send_full_response() {
  bool sent = true;
  if (spec_.stream) {
    if (spec_.include_usage) writer_.append_usage(unsent_, usage());
    openai::ChunkWriter::append_done(unsent_);
    sent = co_await flush();
    if (sent) sent = co_await connection_.end_stream();
  } else {
    HttpResponse response;
    if (logprob_token_count() > kWorkerThresholdTokens) {
      co_await request_manager_.run_on_worker_([&] { write_full_response(response.body); });
    } else {
      write_full_response(response.body);
    }
    add_common_headers_(response);
    sent = co_await connection_.send(response, false, record_.keep_alive, record_.http11);
  }
  record_.keep_alive = record_.keep_alive && sent;
}

size_t ResponseTask::logprob_token_count() const {
  size_t count = 0;
  for (const ChoiceDelta& content : full_choices_) count += content.logprobs.size() + content.prompt_logprobs.size();
  return count;
}

void ResponseTask::write_full_response(std::string& out) const {
  std::vector<openai::ChoiceView> views;
  for (size_t i = 0; i < choices_.size(); ++i) views.push_back(view(i, full_choices_[i]));
  openai::append_response(out, spec_.info, spec_.options, views, usage());
}

asio::awaitable<bool> ResponseTask::flush() {
  if (!stream_open_) {
    HttpResponse head;
    head.content_type = "text/event-stream";
    head.headers.emplace_back("Cache-Control", "no-cache");
    head.headers.emplace_back("X-Accel-Buffering", "no");
    add_common_headers_(head);
    stream_open_ = true;
    record_.keep_alive = record_.keep_alive && record_.http11;
    const bool opened = co_await connection_.begin_stream(head, record_.keep_alive, record_.http11);
    if (!opened) co_return false;
  }
  const bool sent = co_await connection_.write_stream(unsent_);
  comment_timer_.expire_after(request_manager_.options_.comment_interval);
  co_return sent;
}

openai::Usage ResponseTask::usage() const {
  openai::Usage total;
  for (const TokenizedPrompt& prompt : spec_.prompts) total.prompt_tokens += prompt.ids.size();
  for (size_t i = 0; i < choices_.size(); ++i) {
    total.completion_tokens += choices_[i].completion_tokens();
    if (i % spec_.n == 0) total.cached_tokens += choices_[i].cached_tokens();
    if (spec_.options.output_format.splits_reasoning) {
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
