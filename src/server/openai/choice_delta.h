#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sched/plan/finish_reason.h"
#include "tensor/sampling.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tool_calls/output_format.h"

/// The content of a response's choices: what server/choice.h makes and the writers of this folder render.
namespace millrace::server {

struct TokenizedPrompt {
  std::vector<TokenId> ids;
  std::string text;                  ///< only for echo
  std::optional<size_t> given_from;  ///< the first token of a text that is as it was given; unset: it is decoded
};

/// Options of the way from tokens to text; shared by the choices of one request.
struct ChoiceOptions {
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::vector<std::string> stop;
  std::vector<TokenId> stop_token_ids;       ///< eos and the user's; their text is shown with include_stop only
  std::vector<TokenId> user_stop_token_ids;  ///< those of them that the user asked for
  uint32_t min_tokens = 0;                   ///< stop strings that end within the first tokens are ignored
  bool include_stop = false;
  bool skip_special_tokens = true;
  bool echo = false;
  text::OutputFormat output_format;       ///< how a chat's reasoning and tool calls are written
  std::vector<std::string> custom_tools;  ///< the tools whose calls carry a text
  bool parallel_tool_calls = true;        ///< false: the choice ends with its first call
  bool include_reasoning = true;
  bool has_prediction = false;  ///< usage reports what became of the prediction
  uint64_t call_id_seed = 0;    ///< the ids of tool calls are drawn from it
  bool logprobs = false;
  bool tokens_as_ids = false;        ///< in logprobs, "token_id:N" instead of tokens' texts
  bool prompt_logprobs = false;      ///< the response has a field for them, besides what echo shows
  uint32_t top_logprobs = 0;         ///< alternatives per token, with logprobs
  uint32_t top_prompt_logprobs = 0;  ///< alternatives per prompt token, with prompt_logprobs
};

struct ScoredToken {
  tensor::TokenLogprobs logprobs;
  uint32_t text_offset = 0;  ///< code points of the choice's text before this token
  bool scored = true;        ///< false for a prompt's first token
};

/// What an event adds to one tool call.
struct ToolCallDelta {
  uint32_t index = 0;
  std::string id;  ///< in the call's first delta, as the name is
  std::string name;
  std::string arguments;   ///< the next piece of the JSON text, or of a custom tool's input
  bool is_custom = false;  ///< the call is one of a custom tool
  size_t text_before = 0;  ///< bytes of ChoiceDelta::text that the model wrote before this
};

/// What one or more events add to a choice. Members are appended to, so a delta may hold the whole choice.
struct ChoiceDelta {
  std::string text;  ///< the completion's text, or the chat message's content
  std::string reasoning;
  std::vector<ToolCallDelta> calls;
  std::vector<TokenId> tokens;
  std::vector<ScoredToken> logprobs;
  std::vector<tensor::TokenLogprobs> prompt_logprobs;
  std::optional<sched::FinishReason> finish;
  bool has_tool_calls = false;        ///< with finish: the choice holds tool calls
  bool has_open_call = false;         ///< with finish: the last call is cut off
  std::string stop_text;              ///< the stop string that matched, if one did
  std::optional<TokenId> stop_token;  ///< the user's stop token that was drawn, if one was
  bool first = false;                 ///< holds the choice's first event

  /// Calls on_text(std::string_view) and on_call(const ToolCallDelta&) in the order in which the model wrote them.
  template <class OnText, class OnCall>
  void visit_in_order(const OnText& on_text, const OnCall& on_call) const {
    const std::string_view all = text;
    size_t shown = 0;
    for (const ToolCallDelta& call : calls) {
      if (call.text_before > shown) on_text(all.substr(shown, call.text_before - shown));
      shown = std::max(shown, call.text_before);
      on_call(call);
    }
    if (shown < all.size()) on_text(all.substr(shown));
  }
};

}  // namespace millrace::server
