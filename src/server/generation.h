#pragma once

#include <vector>

#include "server/generator.h"
#include "server/lazy_timer.h"
#include "server/openai/response.h"
#include "server/streams.h"

namespace millrace::server {

/// One generation in flight: the engine's streams on one side, one HTTP response on the other. Lives in the frame of
/// Generator::serve, which awaits `finish` whatever happened to `run`.
class Generation {
 public:
  Generation(Generator& generator, GenerationSpec spec, Connection& connection, RequestRecord& record,
             const Generator::Decorator& decorate);
  ~Generation();
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  [[nodiscard]] asio::awaitable<void> run();
  [[nodiscard]] asio::awaitable<void> finish();
  void wake() { streams_.wake(); }
  size_t abort();

 private:
  /// Why the generation ends without a whole answer.
  using Failure = std::optional<openai::ApiError>;

  Failure submit_all();
  /// Takes what has arrived: grows the choices, and the stream's unsent events.
  Failure absorb();
  Failure accept(StreamSet::Arrival& arrival);
  void note_arrival(size_t index, const sched::GenerateEvent& event);
  void note_end();
  asio::awaitable<void> send_failure(openai::ApiError error);
  asio::awaitable<void> send_whole();
  /// Not streaming: tokens with logprobs, of the prompts too.
  [[nodiscard]] size_t scored_count() const;
  void write_whole(std::string& out) const;
  /// Sends the unsent events, opening the stream if need be; false when the client is gone.
  asio::awaitable<bool> flush();
  [[nodiscard]] openai::Usage usage() const;
  [[nodiscard]] openai::ChoiceView view(size_t index, const ChoiceDelta& content) const;

  Generator& generator_;
  GenerationSpec spec_;
  Connection& connection_;
  RequestRecord& record_;
  const Generator::Decorator& decorate_;
  StreamSet streams_;
  std::vector<Choice> choices_;
  std::vector<ChoiceDelta> whole_;  ///< not streaming: each choice's content so far
  std::vector<async::TimePoint> last_token_;
  ChoiceDelta delta_;               ///< streaming: the delta being rendered
  openai::ChunkWriter writer_;
  std::string unsent_;              ///< streaming: rendered events
  LazyTimer comment_timer_;
  size_t unfinished_;
  bool comment_due_ = false;
  bool stream_open_ = false;
};

}  // namespace millrace::server
