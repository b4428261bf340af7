#include "server/generation.h"

#include <algorithm>

namespace millrace::server {
namespace {

using openai::ApiError;

/// Above this the logprobs of a whole answer are written on the worker: about a millisecond's work.
constexpr size_t kElsewhereTokens = 256;

double seconds(async::Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

Generation::Generation(Generator& generator, GenerationSpec spec, Connection& connection, RequestRecord& record,
                       const Generator::Decorator& decorate)
    : generator_(generator),
      spec_(std::move(spec)),
      connection_(connection),
      record_(record),
      decorate_(decorate),
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
  if (!spec_.stream) whole_.resize(unfinished_);
  last_token_.resize(unfinished_);
  for (const PreparedPrompt& prompt : spec_.prompts) record_.prompt_tokens += prompt.ids.size();
  record_.id = spec_.info.id;
  generator_.active_.emplace(spec_.info.id, this);
}

Generation::~Generation() { generator_.active_.erase(spec_.info.id); }

asio::awaitable<void> Generation::finish() { return streams_.finish(); }

size_t Generation::abort() {
  size_t count = 0;
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (choices_[i].finished()) continue;
    if (generator_.service_.engine->abort(spec_.info.id + '-' + std::to_string(i))) ++count;
  }
  return count;
}

asio::awaitable<void> Generation::run() {
  if (Failure failure = submit_all()) {
    co_await send_failure(*std::move(failure));
    co_return;
  }
  streams_.spawn("disconnect watcher", connection_.watch([this] { streams_.wake(); }));
  if (spec_.stream) comment_timer_.expire_after(generator_.options_.comment_interval);
  for (;;) {
    Failure failure = absorb();
    if (!failure && generator_.refusing_) failure = ApiError{503, "the server is shutting down", ""};
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
    note_end();
    co_await send_whole();
  }
  if (connection_.peer_gone()) {
    record_.keep_alive = false;
    record_.status = 499;
    ++generator_.metrics_.disconnects;
  }
}

Generation::Failure Generation::submit_all() {
  for (sched::GenerateRequest& request : spec_.requests) {
    auto submitted = streams_.submit(std::move(request));
    if (submitted.has_error()) return openai::to_api_error(submitted.error());
  }
  spec_.requests = {};
  return std::nullopt;
}

Generation::Failure Generation::absorb() {
  while (auto arrival = streams_.take()) {
    if (Failure failure = accept(*arrival)) return failure;
  }
  return std::nullopt;
}

Generation::Failure Generation::accept(StreamSet::Arrival& arrival) {
  Choice& choice = choices_[arrival.index];
  note_arrival(arrival.index, arrival.event);
  const std::optional<Error> error = std::move(arrival.event.error);
  // A whole answer that fails is an error and nothing else, and a failure before a stream's first token is a status.
  const bool is_lost = error && (!spec_.stream || (arrival.event.tokens.empty() && !choice.started()));
  if (is_lost) return openai::to_api_error(*error);
  ChoiceDelta& delta = spec_.stream ? delta_ : whole_[arrival.index];
  choice.consume(arrival.event, delta);
  if (choice.finished()) {
    --unfinished_;
    streams_.drop(arrival.index);
    generator_.metrics_.count_finish(*choice.finish());
    generator_.metrics_.generation_length.observe(choice.completion_tokens());
  }
  if (!spec_.stream) return std::nullopt;
  writer_.append_delta(unsent_, view(arrival.index, delta), spec_.continuous_usage ? usage() : openai::Usage{});
  delta_ = ChoiceDelta{};
  if (error && !choice.finished()) return openai::to_api_error(*error);
  return std::nullopt;
}

void Generation::note_arrival(size_t index, const sched::GenerateEvent& event) {
  Metrics& metrics = generator_.metrics_;
  const auto now = generator_.runtime_.now();
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

void Generation::note_end() {
  Metrics& metrics = generator_.metrics_;
  const auto now = generator_.runtime_.now();
  metrics.e2e_latency.observe(seconds(now - record_.begin));
  if (record_.first_token) metrics.decode_time.observe(seconds(now - *record_.first_token));
}

asio::awaitable<void> Generation::send_failure(ApiError error) {
  record_.status = error.status;
  if (stream_open_ || !unsent_.empty()) {
    openai::ChunkWriter::append_failure(unsent_, error);
    record_.keep_alive = false;
    bool sent = co_await flush();
    if (sent) sent = co_await connection_.end_stream();
    co_return;
  }
  HttpResponse response = openai::error_response(error);
  if (generator_.refusing_) record_.keep_alive = false;
  decorate_(response);
  const bool sent = co_await connection_.send(response, false, record_.keep_alive, record_.http11);
  record_.keep_alive = record_.keep_alive && sent;
}

asio::awaitable<void> Generation::send_whole() {
  bool sent = true;
  if (spec_.stream) {
    if (spec_.include_usage) writer_.append_usage(unsent_, usage());
    openai::ChunkWriter::append_done(unsent_);
    sent = co_await flush();
    if (sent) sent = co_await connection_.end_stream();
  } else {
    HttpResponse response;
    if (scored_count() > kElsewhereTokens) {
      co_await generator_.elsewhere_([&] { write_whole(response.body); });
    } else {
      write_whole(response.body);
    }
    decorate_(response);
    sent = co_await connection_.send(response, false, record_.keep_alive, record_.http11);
  }
  record_.keep_alive = record_.keep_alive && sent;
}

size_t Generation::scored_count() const {
  size_t count = 0;
  for (const ChoiceDelta& content : whole_) count += content.logprobs.size() + content.prompt_logprobs.size();
  return count;
}

void Generation::write_whole(std::string& out) const {
  std::vector<openai::ChoiceView> views;
  for (size_t i = 0; i < choices_.size(); ++i) views.push_back(view(i, whole_[i]));
  openai::append_response(out, spec_.info, spec_.options, views, usage());
}

asio::awaitable<bool> Generation::flush() {
  if (!stream_open_) {
    HttpResponse head;
    head.content_type = "text/event-stream";
    head.headers.emplace_back("Cache-Control", "no-cache");
    head.headers.emplace_back("X-Accel-Buffering", "no");
    decorate_(head);
    stream_open_ = true;
    record_.keep_alive = record_.keep_alive && record_.http11;
    const bool opened = co_await connection_.begin_stream(head, record_.keep_alive, record_.http11);
    if (!opened) co_return false;
  }
  const bool sent = co_await connection_.write_stream(unsent_);
  comment_timer_.expire_after(generator_.options_.comment_interval);
  co_return sent;
}

openai::Usage Generation::usage() const {
  openai::Usage total;
  for (const PreparedPrompt& prompt : spec_.prompts) total.prompt_tokens += prompt.ids.size();
  for (size_t i = 0; i < choices_.size(); ++i) {
    total.completion_tokens += choices_[i].completion_tokens();
    if (i % spec_.n == 0) total.cached_tokens += choices_[i].cached_tokens();
    if (spec_.options.answer.splits_reasoning) {
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

openai::ChoiceView Generation::view(size_t index, const ChoiceDelta& content) const {
  return {static_cast<uint32_t>(index), content, spec_.prompt_of(index)};
}

}  // namespace millrace::server
