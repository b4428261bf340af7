#pragma once

#include <simdjson.h>

#include <optional>
#include <string>
#include <vector>

#include "async/runtime.h"
#include "load/http_client.h"
#include "load/sse.h"

namespace millrace::load {

/// What became of one request. Times count from `sent_at`.
struct RequestRecord {
  async::TimePoint due_at;  ///< by the arrivals; a turn of a conversation not before the reply to the last
  async::TimePoint sent_at;
  async::Duration ttft{0};            ///< to the first chunk with tokens; to the end where none has any
  async::Duration latency{0};         ///< to the last chunk with choices
  std::vector<async::Duration> gaps;  ///< between chunks with tokens
  uint64_t input_tokens = 0;
  uint64_t output_tokens = 0;
  bool counted_by_server = false;  ///< the token counts are those of usage
  bool finished = false;           ///< completed or failed; false: never sent or cancelled
  Failure failure;
  [[nodiscard]] bool completed() const { return finished && !failure; }
};

/// Reads the event stream of one completion. `json` may be shared between readers of one thread.
class StreamReader {
 public:
  explicit StreamReader(simdjson::ondemand::parser& json, bool keeps_text = false)
      : json_(json), keeps_text_(keeps_text) {}

  void feed(std::string_view bytes, async::TimePoint at);
  /// After the reply's end: fills the record's times, counts and failure. `prompt_length` stands in for the server's
  /// count when it sent none.
  void finish(const HttpReply& reply, uint32_t prompt_length, RequestRecord& record);
  /// What the first choice says, if it is to be kept.
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  void read_event(std::string& data, async::TimePoint at);
  bool read_field(simdjson::ondemand::field& field);
  bool read_choices(simdjson::ondemand::array choices);
  void fail(FailureKind kind, std::string message);
  [[nodiscard]] Failure failure_of(const HttpReply& reply) const;

  simdjson::ondemand::parser& json_;
  const bool keeps_text_;
  std::string text_;
  SseParser sse_;
  async::TimePoint first_;  // of the chunks with tokens
  async::TimePoint last_;   // of the same
  async::TimePoint end_;    // the last chunk with choices
  std::vector<async::Duration> gaps_;
  uint64_t chunk_count_ = 0;  // with tokens
  bool event_has_choices_ = false;
  bool event_has_tokens_ = false;
  bool had_choices_ = false;
  std::optional<uint64_t> input_tokens_;
  std::optional<uint64_t> output_tokens_;
  bool done_ = false;
  Failure failure_;
};

/// The message of an OpenAI error body, or the start of the body when it is something else.
[[nodiscard]] std::string error_message_of(std::string_view body);

}  // namespace millrace::load
