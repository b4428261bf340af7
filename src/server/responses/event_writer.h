#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/openai/response_writer.h"
#include "server/responses/request.h"
#include "server/responses/response_object.h"
#include "server/responses/store.h"

namespace millrace::server::responses {

/// A response that is generated in the background: what its writer has written so far, for whoever asks. Used on the
/// server's executor only.
struct LiveResponse {
  std::string object;               ///< the response as JSON
  std::vector<std::string> events;  ///< of its stream; the index is the sequence number
};

/// The inputs of an EventWriter in addition to ResponseInfo and ChoiceOptions.
struct WriterInput {
  ResponseHead head;
  ToolOrigins origins;
  Compaction compaction = Compaction::kNone;
  std::vector<StoredItem> input;
  ResponseStore* store = nullptr;      ///< takes the response when it ends; null: none does
  std::shared_ptr<LiveResponse> live;  ///< of a response in the background; else null
  bool is_background = false;
};

/// Writes a response of /v1/responses, as events with sequence numbers or as one object. Text, reasoning and calls
/// become items; one item is open at a time.
class EventWriter final : public openai::ResponseWriter {
 public:
  /// `info` and `options` outlive the writer.
  EventWriter(const openai::ResponseInfo& info, const ChoiceOptions& options, std::shared_ptr<const WriterInput> input);

  /// Publishes that the response waits for its turn.
  void publish_queued() { publish({.status = ResponseStatus::kQueued}); }

  void append_start(std::string& out, const openai::Usage& usage) override;
  void append_delta(std::string& out, const openai::ChoiceView& choice, const openai::Usage& usage) override;
  void append_keep_alive(std::string& out) override;
  void append_end(std::string& out, const openai::Usage& usage) override;
  void append_failure(std::string& out, const openai::ApiError& error) override;
  void append_response(std::string& out, std::span<const openai::ChoiceView> choices,
                       const openai::Usage& usage) override;

 private:
  /// Writes the summary as one item.
  void write_summary(std::string& out);
  void take_text(std::string& out, ItemKind kind, std::string_view text);
  void take_call(std::string& out, const ToolCallDelta& call);
  void open_item(std::string& out, OutputItem item);
  /// Writes a piece of the open item, and adds it to the item.
  void extend_item(std::string& out, std::string_view piece, std::vector<ScoredToken> logprobs);
  void close_item(std::string& out, ItemStatus status);
  [[nodiscard]] bool is_open(ItemKind kind) const;
  [[nodiscard]] std::string next_item_id(ItemKind kind) const;

  /// Appends one event, whose further members `write` writes, and records it.
  template <class Write>
  void append_event(std::string& out, std::string_view type, Write write);
  void append_response_event(std::string& out, std::string_view type, const ResponseState& state);
  void append_item_event(std::string& out, std::string_view type);
  /// Writes the members that say which item an event is about.
  void write_position(JsonWriter& json) const;
  [[nodiscard]] std::string object_text(const ResponseState& state) const;
  /// Publishes what the response has become; stores one that has ended.
  void publish(const ResponseState& state);

  const openai::ResponseInfo& info_;
  const ChoiceOptions& options_;
  const std::shared_ptr<const WriterInput> input_;
  std::vector<OutputItem> items_;
  bool has_open_item_ = false;         ///< the last one
  std::optional<uint32_t> open_call_;  ///< the index of the call that the open item is
  std::string held_space_;             ///< white space that becomes a message only if more text follows
  std::vector<ScoredToken> held_logprobs_;
  std::string summary_;   ///< of a conversation that is compacted, as far as it is written
  std::string thoughts_;  ///< before the summary
  std::optional<sched::FinishReason> finish_;
  uint64_t sequence_number_ = 0;
  std::vector<std::string> events_;  ///< of a response that is to be stored, and is not live
};

}  // namespace millrace::server::responses
