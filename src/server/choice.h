#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/openai/choice_delta.h"
#include "server/openai/custom_input.h"
#include "text/tool_calls/output_parser.h"
#include "text/tokenizer/incremental_detokenizer.h"
#include "text/stop_strings.h"
#include "text/tokenizer/tokenizer.h"

namespace millrace::sched {
struct GenerateEvent;
}

namespace millrace::server {

/// One continuation on its way from tokens to text: detokenises, cuts at stop strings, collects logprobs. Plain code;
/// one per engine request, owned by its ResponseTask.
class Choice {
 public:
  /// `index` is the choice's position in the response. `options` and `prompt` outlive the choice.
  Choice(const ChoiceOptions& options, const TokenizedPrompt& prompt, uint32_t index = 0);

  /// Appends what `event` adds to the choice; nothing once it has finished.
  void consume(sched::GenerateEvent& event, ChoiceDelta& delta);
  [[nodiscard]] bool started() const { return started_; }
  [[nodiscard]] bool finished() const { return finish_.has_value(); }
  [[nodiscard]] std::optional<sched::FinishReason> finish() const { return finish_; }
  [[nodiscard]] uint32_t completion_tokens() const { return completion_tokens_; }
  [[nodiscard]] uint32_t cached_tokens() const { return cached_tokens_; }
  [[nodiscard]] uint32_t reasoning_tokens() const { return reasoning_tokens_; }
  [[nodiscard]] uint32_t accepted_predictions() const { return accepted_predictions_; }
  [[nodiscard]] uint32_t rejected_predictions() const { return rejected_predictions_; }

 private:
  void start(sched::GenerateEvent& event, ChoiceDelta& delta);
  void add_echo(sched::GenerateEvent& event, ChoiceDelta& delta);
  /// Returns true when the choice ends with the token: a stop string is complete, or the only call that it may hold.
  /// `piece` is the text of earlier tokens that the token makes certain.
  bool add_token(TokenId token, bool is_shown, std::string piece, ChoiceDelta& delta);
  void show(std::string_view text, ChoiceDelta& delta);
  void take(text::OutputPart part, ChoiceDelta& delta);
  /// Adds what is left of a custom call's input; `text_before` is its place in the delta if it is the first of the
  /// call.
  void end_custom_call(size_t text_before, ChoiceDelta& delta);
  [[nodiscard]] std::string call_id(uint32_t call) const;
  void finish_with(sched::FinishReason reason, ChoiceDelta& delta);

  const ChoiceOptions& options_;
  const TokenizedPrompt& prompt_;
  text::IncrementalDetokenizer detokenizer_;
  text::StopMatcher stops_;
  std::optional<text::OutputParser> output_parser_;
  uint32_t open_call_ = 0;                           ///< the last call that has begun
  std::optional<openai::CustomInput> custom_input_;  ///< of that call, if its tool is a custom one
  uint32_t index_;
  std::optional<sched::FinishReason> finish_;
  uint32_t completion_tokens_ = 0;
  uint32_t cached_tokens_ = 0;
  uint32_t reasoning_tokens_ = 0;
  uint32_t accepted_predictions_ = 0;
  uint32_t rejected_predictions_ = 0;
  uint32_t text_offset_ = 0;
  bool started_ = false;
};

}  // namespace millrace::server
