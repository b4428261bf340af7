#pragma once

#include <vector>

#include "server/request_manager.h"
#include "server/http/lazy_timer.h"
#include "server/openai/response.h"
#include "server/stream_set.h"

namespace millrace::server {

/// One generation in flight: the engine's streams on one side, one HTTP response on the other. Lives in the frame of
/// RequestManager::serve, which awaits `finish` whatever happened to `run`.
class ResponseTask {
 public:
  ResponseTask(RequestManager& generator, GenerationSpec spec, Connection& connection, RequestRecord& record,
               const RequestManager::Decorator& add_common_headers);
  ~ResponseTask();
  ResponseTask(const ResponseTask&) = delete;
  ResponseTask& operator=(const ResponseTask&) = delete;

  [[nodiscard]] asio::awaitable<void> run();
  [[nodiscard]] asio::awaitable<void> finish();
  void wake() { streams_.wake(); }
  size_t abort();

 private:
  /// Why the generation ends without a whole answer.
  using Failure = std::optional<openai::ApiError>;

  Failure submit_all();
  /// Takes what has arrived: grows the choices, and the stream's unsent events.
  Failure process_events();
  Failure process_event(StreamSet::Arrival& arrival);
  void record_event_metrics(size_t index, const sched::GenerateEvent& event);
  void record_end_metrics();
  asio::awaitable<void> send_failure(openai::ApiError error);
  asio::awaitable<void> send_full_response();
  /// Not streaming: tokens with logprobs, of the prompts too.
  [[nodiscard]] size_t logprob_token_count() const;
  void write_full_response(std::string& out) const;
  /// Sends the unsent events, opening the stream if need be; false when the client is gone.
  asio::awaitable<bool> flush();
  [[nodiscard]] openai::Usage usage() const;
  [[nodiscard]] openai::ChoiceView view(size_t index, const ChoiceDelta& content) const;

  RequestManager& request_manager_;
  GenerationSpec spec_;
  Connection& connection_;
  RequestRecord& record_;
  const RequestManager::Decorator& add_common_headers_;
  StreamSet streams_;
  std::vector<Choice> choices_;
  std::vector<ChoiceDelta> full_choices_;  ///< not streaming: each choice's content so far
  std::vector<async::TimePoint> last_token_;
  ChoiceDelta delta_;  ///< streaming: the delta being rendered
  openai::ChunkWriter writer_;
  std::string unsent_;  ///< streaming: rendered events
  LazyTimer comment_timer_;
  size_t unfinished_;
  bool comment_due_ = false;
  bool stream_open_ = false;
};

}  // namespace millrace::server
