#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sched/head/engine.h"
#include "text/tool_calls/output_parser.h"
#include "text/tokenizer/incremental_detokenizer.h"
#include "text/stop_strings.h"
#include "text/tokenizer/tokenizer.h"

namespace millrace::server {

struct TokenizedPrompt {
  std::vector<TokenId> ids;
  std::string text;  ///< only for echo
};

/// How tokens become text; shared by the choices of one request.
struct ChoiceOptions {
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::vector<std::string> stop;
  std::vector<TokenId> stop_token_ids;       ///< eos and the user's; their text is not shown unless include_stop
  std::vector<TokenId> user_stop_token_ids;  ///< the user's alone
  uint32_t min_tokens = 0;                   ///< stop strings that end within so many tokens do not count
  bool include_stop = false;
  bool skip_special_tokens = true;
  bool echo = false;
  text::OutputFormat output_format;  ///< of a chat
  bool parallel_tool_calls = true;   ///< else the choice ends with its first call
  bool include_reasoning = true;
  bool has_prediction = false;  ///< usage says what came of it
  uint64_t call_id_seed = 0;    ///< the calls' ids follow from it
  bool logprobs = false;
  bool tokens_as_ids = false;        ///< in logprobs, "token_id:N" instead of tokens' texts
  bool prompt_logprobs = false;      ///< keep them as such, besides what echo does with them
  uint32_t top_logprobs = 0;         ///< alternatives beside each token, with logprobs
  uint32_t top_prompt_logprobs = 0;  ///< the same with prompt_logprobs
};

struct ScoredToken {
  tensor::TokenLogprobs logprobs;
  uint32_t text_offset = 0;  ///< code points of the choice's text before this token
  bool scored = true;        ///< false for a prompt's first token
};

/// What is new of one call of a tool.
struct ToolCallDelta {
  uint32_t index = 0;
  std::string id;  ///< with the name, in the call's first delta
  std::string name;
  std::string arguments;  ///< JSON, the next piece of it
};

/// What one or more events add to a choice. Members are appended to, so that a delta may hold the whole choice.
struct ChoiceDelta {
  std::string text;  ///< of a chat: its content
  std::string reasoning;
  std::vector<ToolCallDelta> calls;
  std::vector<TokenId> tokens;
  std::vector<ScoredToken> logprobs;
  std::vector<tensor::TokenLogprobs> prompt_logprobs;
  std::optional<sched::FinishReason> finish;
  bool has_tool_calls = false;        ///< with finish: the choice holds calls
  std::string stop_text;              ///< the stop string that matched, if one did
  std::optional<TokenId> stop_token;  ///< the user's stop token that was drawn, if one was
  bool first = false;                 ///< holds the choice's first event
};

/// One continuation on its way from tokens to text: detokenises, cuts at stop strings, collects logprobs. Plain code;
/// one per engine request, used on the front's thread.
class Choice {
 public:
  /// `index`: of the response's choices.
  Choice(const ChoiceOptions& options, const TokenizedPrompt& prompt, uint32_t index = 0);

  /// Appends what `event` adds. After finished() nothing more is added.
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
  /// True when the choice ends with the token: a stop string, or the one call that it may hold, is complete.
  bool add_token(TokenId token, bool is_shown, ChoiceDelta& delta);
  void show(std::string_view text, ChoiceDelta& delta);
  void take(text::OutputPart part, ChoiceDelta& delta);
  [[nodiscard]] std::string call_id(uint32_t call) const;
  void finish_with(sched::FinishReason reason, ChoiceDelta& delta);

  const ChoiceOptions& options_;
  const TokenizedPrompt& prompt_;
  text::IncrementalDetokenizer detokenizer_;
  text::StopMatcher stops_;
  std::optional<text::OutputParser> output_parser_;
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

/// The token's text for logprobs; "bytes:\xe2\x80" where its bytes are not a text by themselves.
[[nodiscard]] std::string token_text(const text::Tokenizer& tokenizer, TokenId token);

}  // namespace millrace::server
