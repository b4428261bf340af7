#pragma once

#include <memory>
#include <vector>

#include "server/choice.h"
#include "server/http/lazy_timer.h"
#include "server/generation_spec.h"
#include "server/openai/response.h"
#include "server/response_context.h"
#include "server/response_sink.h"
#include "server/stream_set.h"

namespace millrace::server {

/// Turns the engine's streams of one request into its response. Lives in the frame of GenerationRoutes::serve,
/// which awaits `finish` whatever happened to `run`; the server's executor only.
class ResponseTask {
 public:
  /// `sink` outlives the task.
  ResponseTask(const ResponseContext& context, GenerationSpec spec, ResponseSink& sink);
  ResponseTask(const ResponseTask&) = delete;
  ResponseTask& operator=(const ResponseTask&) = delete;

  [[nodiscard]] const std::string& id() const { return spec_.info.id; }
  /// Submits the request's sequences, writes what they generate, and returns when the response has ended.
  [[nodiscard]] asio::awaitable<void> run();
  /// Drops what is left of the streams. Not cancellable.
  [[nodiscard]] asio::awaitable<void> finish() { return streams_.finish(); }
  /// Wakes `run`, which checks again what it waits for.
  void wake() { streams_.wake(); }
  /// Aborts the sequences at the engine; returns their count.
  size_t abort();

 private:
  /// Why the response ends before it is whole.
  using Failure = std::optional<openai::ApiError>;

  /// Makes a stream that has begun send a comment.
  void probe_client();
  Failure submit_all();
  /// Takes the events that have arrived: grows the choices, and the stream's unsent events.
  Failure process_events();
  Failure process_event(StreamSet::Arrival& arrival);
  void record_event_metrics(size_t index, const sched::GenerateEvent& event);
  /// Counts the request's latencies, and as aborted each choice that the client's disconnect cut off.
  void record_end_metrics();
  /// Appends the stream's beginning, unless it is there already.
  void start_stream();
  asio::awaitable<void> send_failure(openai::ApiError error);
  asio::awaitable<void> send_full_response();
  /// Returns the tokens with logprobs of a whole response, its prompts included.
  [[nodiscard]] size_t logprob_token_count() const;
  void write_full_response(std::string& out);
  /// Sends the unsent events, opening the stream if need be; false when the client is gone.
  asio::awaitable<bool> flush();
  [[nodiscard]] openai::Usage usage() const;
  [[nodiscard]] openai::ChoiceView view(size_t index, const ChoiceDelta& content) const;

  const ResponseContext& context_;
  GenerationSpec spec_;
  ResponseSink& sink_;
  StreamSet streams_;
  std::vector<Choice> choices_;
  std::vector<ChoiceDelta> full_choices_;  ///< not streaming: each choice's content so far
  std::vector<async::TimePoint> last_token_;
  ChoiceDelta delta_;  ///< streaming: the delta being rendered
  std::unique_ptr<openai::ResponseWriter> writer_;
  std::string unsent_;  ///< streaming: rendered events
  LazyTimer comment_timer_;
  size_t unfinished_;
  bool comment_due_ = false;
  bool stream_started_ = false;  ///< the writer has written the beginning
};

}  // namespace millrace::server
