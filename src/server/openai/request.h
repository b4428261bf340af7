#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "sched/plan/pause_mode.h"
#include "server/openai/error.h"

/// The requests of the OpenAI-compatible API as plain structs, and their parsers. Every field is validated, and nothing
/// that changes the output is ignored. Parsing needs no socket and no engine.
namespace millrace::server::openai {

/// Bounds of fields that OpenAI does not document.
struct RequestLimits {
  uint32_t vocab_size = 0;      ///< drawable ids
  size_t max_choices = 512;     ///< prompts times n
  uint32_t max_logprobs = 20;   ///< alternatives to a token
  bool has_priorities = false;  ///< else 0 is the only one
  uint32_t ring_count = 1;      ///< rings that a request may name
};

/// What the output must match.
struct ResponseFormat {
  enum class Kind : uint8_t { kJsonObject, kJsonSchema, kRegex, kGrammar, kChoice };
  Kind kind = Kind::kJsonObject;
  std::vector<std::string> texts;  ///< a schema, an expression, a grammar in EBNF; the choices
  std::string field;               ///< of the request, that says it
  std::string name;                ///< the place in it, for messages
};

/// Fields of both completions and chat completions. An empty optional means the model's default.
struct CommonRequest {
  std::string model;  ///< empty: not said
  std::optional<uint32_t> max_tokens;
  std::string_view max_tokens_name = "max_tokens";  ///< the field that gave it
  bool fills_context = false;                       ///< max_tokens beyond the context's room is lowered, not refused
  uint32_t n = 1;
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<int32_t> top_k;  ///< 0: off
  std::optional<float> repetition_penalty;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  std::optional<uint64_t> seed;  ///< nothing: every choice draws with one of its own
  std::vector<std::string> stop;
  std::vector<TokenId> stop_token_ids;
  std::vector<std::pair<TokenId, float>> logit_bias;
  int32_t top_logprobs = -1;     ///< -1: no logprobs
  int32_t prompt_logprobs = -1;  ///< -1: none
  uint32_t min_tokens = 0;
  bool ignore_eos = false;
  bool include_stop = false;
  bool skip_special_tokens = true;
  bool return_token_ids = false;
  bool tokens_as_ids = false;  ///< in logprobs, "token_id:N" instead of tokens' texts
  /// -1 keeps as many tokens as the context holds together with max_tokens.
  std::optional<int32_t> truncate_prompt_tokens;
  bool keep_prompt_start = false;  ///< of a prompt that is truncated, instead of its end
  std::optional<bool> add_special_tokens;
  int32_t priority = 0;          ///< as it was sent
  std::optional<uint32_t> ring;  ///< that must run it; nothing: any
  std::optional<ResponseFormat> response_format;
  std::string request_id;
  std::string cache_salt;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
};

using Prompt = std::variant<std::string, std::vector<TokenId>>;

struct CompletionRequest : CommonRequest {
  std::vector<Prompt> prompts;
  bool echo = false;
};

/// A tool call in an assistant's message.
struct MessageToolCall {
  std::string id;
  std::string name;
  std::string arguments;  ///< a text, JSON of an object if the model and the client were right
};

/// A part of a message that the model cannot read, and that its content has a note for.
struct Medium {
  std::string word;  ///< for it: "image", "file"
  std::string path;  ///< in the request, for messages
};

struct ChatMessage {
  enum class Content : uint8_t { kAbsent, kNull, kText };
  std::string role;
  Content content_kind = Content::kAbsent;  ///< as it was sent
  std::string content;                      ///< text parts joined by newlines
  std::vector<std::string> parts;           ///< as they were sent, or none
  std::string name;
  std::string reasoning;                    ///< of an assistant
  std::vector<MessageToolCall> tool_calls;  ///< of an assistant
  std::string tool_call_id;                 ///< of a tool's result
  std::optional<Medium> medium;             ///< the first one
};

enum class ToolChoice : uint8_t {
  kAuto,      ///< the model chooses
  kNone,      ///< it is not shown the tools
  kRequired,  ///< the output is calls
  kNamed,     ///< a call of one tool
};

/// The language of a custom tool's input.
struct InputGrammar {
  enum class Syntax : uint8_t { kLark, kRegex };
  Syntax syntax = Syntax::kLark;
  std::string definition;
};

/// A function that the model may call.
struct Tool {
  std::string name;
  std::string parameters;                  ///< the JSON schema of an object; empty: not said
  bool is_strict = false;                  ///< arguments have to be what the schema or the grammar allows
  std::string path;                        ///< in the request, for messages
  bool is_custom = false;                  ///< its calls carry a text: the only argument, "input"
  std::optional<InputGrammar> input = {};  ///< of a custom tool; nothing: any text
};

/// How a request names one of its tools.
struct ToolName {
  std::string name;
  bool is_custom = false;
};

/// A bound on the tokens of an output's reasoning.
struct ThinkingBudget {
  uint32_t tokens = 0;
  std::string_view field;  ///< that gave it
  bool is_wish = false;    ///< models whose reasoning has no end tag ignore it
};

/// The input of a chat template; also the body of /apply-template and of a /tokenize of messages.
struct Conversation {
  std::vector<ChatMessage> messages;
  std::string_view messages_name = "messages";  ///< the field that gave them
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  std::string chat_template;         ///< the name of one of the model's, or a text; empty: the model's
  std::string chat_template_kwargs;  ///< a JSON object, or empty
  std::string reasoning_effort;      ///< as the template takes it; empty: not said
  std::optional<bool> enable_thinking;
  std::optional<ThinkingBudget> thinking_budget;       ///< of its next message
  bool hides_reasoning = false;                        ///< of its next message
  bool allows_one_call = false;                        ///< its next message ends with its first call
  std::string tools_json;                              ///< an array, or empty
  std::string documents_json;                          ///< an array of objects, or empty
  std::vector<Tool> tools;                             ///< that may be called
  bool restricts_tools = false;                        ///< the model is shown others too, which it must not call
  std::optional<std::vector<ToolName>> allowed_tools;  ///< those that tool_choice allows; nothing: all
  ToolChoice tool_choice = ToolChoice::kAuto;
  std::string chosen_tool;      ///< with kNamed
  bool chooses_custom = false;  ///< whether the request says that it is a custom tool
  [[nodiscard]] bool has_tools() const { return !tools.empty() && tool_choice != ToolChoice::kNone; }
  /// Returns whether the model is shown tools, of which it may call none.
  [[nodiscard]] bool forbids_calls() const {
    return tools.empty() && restricts_tools && !tools_json.empty() && tool_choice != ToolChoice::kNone;
  }
  [[nodiscard]] bool forces_call() const {
    return tool_choice == ToolChoice::kRequired || tool_choice == ToolChoice::kNamed;
  }
};

struct ChatRequest : CommonRequest {
  Conversation conversation;
  std::optional<ThinkingBudget> thinking_budget;
  bool parallel_tool_calls = true;  ///< else the output ends with its first call
  bool separate_reasoning = true;   ///< else it stays in the content
  bool include_reasoning = true;    ///< else it is left out
  std::string prediction;           ///< what the output is expected to be like; empty: not said
};

struct TokenizeRequest {
  std::string model;
  std::variant<std::string, Conversation> input;
  std::optional<bool> add_special_tokens;
  bool return_token_strings = false;
};

struct DetokenizeRequest {
  std::string model;
  std::vector<TokenId> tokens;
  bool skip_special_tokens = false;
};

struct FlushRequest {
  float timeout_s = 0;           ///< how long to wait for running requests
  std::optional<uint32_t> ring;  ///< nothing: all
};

struct PauseRequest {
  sched::PauseMode mode = sched::PauseMode::kAbort;
  std::optional<uint32_t> ring;  ///< nothing: all
};

struct AbortRequest {
  std::string request_id;
  bool all = false;
  std::optional<uint32_t> ring;  ///< with `all`; nothing: all
};

/// A request of an administrator about one ring.
struct RingRequest {
  std::optional<uint32_t> ring;
  bool force = false;  ///< does not wait for its requests to end
};

[[nodiscard]] ApiResult<CompletionRequest> parse_completion_request(const std::string& body,
                                                                    const RequestLimits& limits);
[[nodiscard]] ApiResult<ChatRequest> parse_chat_request(const std::string& body, const RequestLimits& limits);
[[nodiscard]] ApiResult<TokenizeRequest> parse_tokenize_request(const std::string& body, const RequestLimits& limits);
[[nodiscard]] ApiResult<DetokenizeRequest> parse_detokenize_request(const std::string& body,
                                                                    const RequestLimits& limits);
[[nodiscard]] ApiResult<Conversation> parse_template_request(const std::string& body, const RequestLimits& limits);
[[nodiscard]] ApiResult<AbortRequest> parse_abort_request(const std::string& body);
/// Parses the body; an empty one asks for the defaults.
[[nodiscard]] ApiResult<FlushRequest> parse_flush_request(const std::string& body);
[[nodiscard]] ApiResult<PauseRequest> parse_pause_request(const std::string& body);
[[nodiscard]] ApiResult<RingRequest> parse_ring_request(const std::string& body);

}  // namespace millrace::server::openai
