#include <algorithm>
#include <array>

#include "base/log.h"
#include "server/openai/field.h"

namespace millrace::server::openai {
namespace {

using Limits = RequestLimits;
using Name = std::string_view;

FieldError read_prompt(Name name, Json value, const Limits& limits, CompletionRequest& request) {
  request.prompts.clear();
  if (value.is_string()) {
    std::string text;
    if (FieldError field_error = read_string(name, value, text)) return field_error;
    request.prompts.emplace_back(std::move(text));
    return std::nullopt;
  }
  JsonArray array;
  constexpr std::string_view kWanted = "a string, an array of strings, of token ids, or of arrays of token ids";
  if (!value.get(array)) return wrong_type(name, value, kWanted);
  if (array.begin() == array.end()) return bad_request(name, "prompt: found an empty array, wanted {}", kWanted);
  const Json first = *array.begin();
  if (first.is_number()) {
    std::vector<TokenId> ids;
    if (FieldError field_error = read_token_ids(name, value, limits.vocab_size, ids)) return field_error;
    request.prompts.emplace_back(std::move(ids));
    return std::nullopt;
  }
  if (array.size() > limits.max_choices) {
    return bad_request(name, "prompt: found {} prompts, wanted at most {} (--max-choices)", array.size(),
                       limits.max_choices);
  }
  for (const Json item : array) {
    if (item.is_string() && first.is_string()) {
      std::string text;
      if (FieldError field_error = read_string(name, item, text)) return field_error;
      request.prompts.emplace_back(std::move(text));
    } else if (item.is_array() && first.is_array()) {
      std::vector<TokenId> ids;
      if (FieldError field_error = read_token_ids(name, item, limits.vocab_size, ids)) return field_error;
      request.prompts.emplace_back(std::move(ids));
    } else {
      return wrong_type(name, item, kWanted);
    }
  }
  return std::nullopt;
}

void describe_prompt(SchemaWriter& schema) {
  JsonWriter& json = schema.json();
  const auto open = [&json](const char* name) { json.begin_object().member("type", name); };
  json.key("anyOf").begin_array();
  open("string");
  json.end_object();
  open("array");
  json.member("minItems", 1).member("maxItems", schema.limits().max_choices).key("items");
  json.raw(R"({"type":"string"})").end_object().begin_object();
  schema.token_ids(schema.limits().vocab_size);
  json.member("minItems", 1).end_object();
  open("array");
  json.member("minItems", 1).member("maxItems", schema.limits().max_choices).key("items").begin_object();
  schema.token_ids(schema.limits().vocab_size);
  json.end_object().end_object().end_array();
}

constexpr std::array kCompletionFields = {
    Field<CompletionRequest>{"prompt", read_prompt, describe_prompt},
    integer_field<CompletionRequest, &CompletionRequest::max_tokens, 0, kInt32Max>("max_tokens",
                                                                                   "0 only with echo; default 16"),
    flag_field<CompletionRequest, &CompletionRequest::echo>("echo"),
    alternatives_field<CompletionRequest, &CompletionRequest::top_logprobs>("logprobs"),
};

/// Merges the two fields of chat logprobs: whether they are wanted, and how many alternatives.
struct ChatFields : ChatRequest {
  bool logprobs = false;
  std::optional<int32_t> alternatives;
  std::optional<uint32_t> max_completion_tokens;
};

/// Refuses vLLM's echo of chats, which would put the last message before the output.
FieldError read_chat_echo(Name name, Json value, const Limits&, ChatFields&) {
  bool echo = false;
  if (FieldError field_error = read_bool(name, value, echo)) return field_error;
  if (!echo) return std::nullopt;
  return bad_request(name, "{}: not supported for a chat, only for /v1/completions", name);
}

FieldError read_prediction(Name name, Json value, const Limits&, ChatFields& request) {
  JsonObject object;
  if (!value.get(object)) return wrong_type(name, value, "an object");
  std::string_view type;
  if (!object["type"].get(type) || type != "content") {
    return bad_request(name, "{}.type: wanted 'content'", name);
  }
  Json content;
  if (!object["content"].get(content)) return bad_request(name, "{}.content: missing", name);
  return read_content(fmt::format("{}.content", name), content, request.prediction);
}

void describe_prediction(SchemaWriter& schema) {
  schema.type("object");
  schema.json()
      .key("required")
      .raw(R"(["type","content"])")
      .key("properties")
      .raw(R"({"type":{"const":"content"},"content":{"anyOf":[{"type":"string"},{"type":"array","items":{"type":)"
           R"("object","required":["type","text"],"properties":{"type":{"const":"text"},)"
           R"("text":{"type":"string"}}}}]}})");
}

constexpr std::array<std::string_view, 6> kReasoningFormats = {"auto", "deepseek", "parsed", "none", "raw", "hidden"};

void use_reasoning_format(std::string_view format, ChatFields& request) {
  if (format == "none" || format == "raw") request.separate_reasoning = false;
  if (format == "hidden") request.include_reasoning = false;
}

constexpr std::array kChatFields = {
    integer_field<ChatFields, &ChatFields::max_tokens, 1, kInt32Max>("max_tokens",
                                                                     "Default: what remains of the context"),
    integer_field<ChatFields, &ChatFields::max_completion_tokens, 1, kInt32Max>("max_completion_tokens",
                                                                                "Goes before max_tokens"),
    flag_field<ChatFields, &ChatFields::logprobs>("logprobs"),
    alternatives_field<ChatFields, &ChatFields::alternatives>("top_logprobs", "Only with logprobs"),
    Field<ChatFields>{"echo", read_chat_echo,
                      [](SchemaWriter& schema) { schema.json().key("enum").raw("[null,false]"); }},
    flag_field<ChatFields, &ChatFields::parallel_tool_calls>(
        "parallel_tool_calls", "Default true; false ends the answer after its first call"),
    flag_field<ChatFields, &ChatFields::separate_reasoning>("separate_reasoning",
                                                            "Default true; false leaves reasoning in the content"),
    flag_field<ChatFields, &ChatFields::include_reasoning>("include_reasoning", "Default true; false omits it"),
    word_field<ChatFields, kReasoningFormats, use_reasoning_format>(
        "reasoning_format", "none and raw leave reasoning in the content, hidden omits it"),
    Field<ChatFields>{"prediction", read_prediction, describe_prediction,
                      "Expected output, used as drafts. It speeds the answer up and never changes it"},
};

FieldError read_thinking_budget(Name name, Json value, const Limits&, ChatRequest& request) {
  int64_t tokens = 0;
  if (FieldError field_error = read_integer(name, value, -1, kInt32Max, tokens)) return field_error;
  if (tokens >= 0) {
    request.thinking_budget = ThinkingBudget{.tokens = static_cast<uint32_t>(tokens), .field = name};
  } else if (request.thinking_budget && request.thinking_budget->field == name) {
    request.thinking_budget.reset();
  }
  return std::nullopt;
}

constexpr Field<ChatRequest> thinking_budget_field(Name name) {
  return {name, read_thinking_budget, [](SchemaWriter& schema) { schema.integer(-1, kInt32Max); },
          "Bounds the tokens of the reasoning, which is ended there; -1 is no bound. Without tags of reasoning: 400"};
}

constexpr std::array kThinkingBudgetFields = {thinking_budget_field("thinking_token_budget"),
                                              thinking_budget_field("thinking_budget"),
                                              thinking_budget_field("thinking_budget_tokens")};

constexpr size_t kMaxLoggedFields = 32;  // named in the log
constexpr size_t kMaxLoggedNameBytes = 64;

/// Logs the names of unknown members at debug level, without their values, which may be private.
template <class... Fields>
void log_ignored(JsonObject object, const Fields&... tables) {
  if (!log::enabled(log::Level::kDebug)) return;
  std::string names;
  size_t count = 0;
  for (const auto& member : object) {
    const auto knows = [&member](const auto& table) {
      return std::ranges::any_of(table, [&member](const auto& field) { return field.name == member.key; });
    };
    if (is_checked_field(member.key) || (knows(tables) || ...)) continue;
    if (++count > kMaxLoggedFields) continue;
    if (!names.empty()) names += ", ";
    for (const char c : member.key.substr(0, kMaxLoggedNameBytes)) names += c > 0x20 && c < 0x7f ? c : '?';
  }
  if (count > 0) log::debug("a request's members that are ignored: {}{}", names, count > kMaxLoggedFields ? ", …" : "");
}

FieldError finish_chat(ChatFields& fields) {
  if (fields.alternatives && !fields.logprobs && *fields.alternatives > 0) {
    return bad_request("top_logprobs", "top_logprobs: allowed only with logprobs true");
  }
  if (fields.logprobs) fields.top_logprobs = fields.alternatives.value_or(0);
  if (fields.max_completion_tokens) {
    fields.max_tokens = fields.max_completion_tokens;
    fields.max_tokens_name = "max_completion_tokens";
  }
  return std::nullopt;
}

}  // namespace

std::span<const Field<ChatRequest>> thinking_budget_fields() {
  return kThinkingBudgetFields;
}

ApiResult<CompletionRequest> parse_completion_request(const std::string& body, const RequestLimits& limits) {
  Document document;
  CompletionRequest request;
  if (FieldError field_error = document.parse(body)) return *field_error;
  if (FieldError field_error = check_unsupported(document.object(), false)) return *field_error;
  if (FieldError field_error = read_members<CommonRequest>(document.object(), limits, request, common_fields())) {
    return *field_error;
  }
  if (FieldError field_error = read_members<CompletionRequest>(document.object(), limits, request, kCompletionFields)) {
    return *field_error;
  }
  if (FieldError field_error = check_common(request)) return *field_error;
  log_ignored(document.object(), common_fields(), kCompletionFields);
  if (request.prompts.empty()) return bad_request("prompt", "prompt: missing");
  if (request.max_tokens && *request.max_tokens == 0 && !request.echo) {
    return bad_request("max_tokens", "max_tokens: found 0, wanted at least 1 (0 only with echo)");
  }
  if (request.prompts.size() * request.n > limits.max_choices) {
    return bad_request("n", "{} prompts times n = {} give more than {} choices (--max-choices)", request.prompts.size(),
                       request.n, limits.max_choices);
  }
  return request;
}

ApiResult<ChatRequest> parse_chat_request(const std::string& body, const RequestLimits& limits) {
  Document document;
  ChatFields fields;
  if (FieldError field_error = document.parse(body)) return *field_error;
  if (FieldError field_error = check_unsupported(document.object(), true)) return *field_error;
  if (FieldError field_error = read_members<CommonRequest>(document.object(), limits, fields, common_fields())) {
    return *field_error;
  }
  if (FieldError field_error = read_members<ChatFields>(document.object(), limits, fields, kChatFields))
    return *field_error;
  if (FieldError field_error = read_members<ChatRequest>(document.object(), limits, fields, thinking_budget_fields()))
    return *field_error;
  if (FieldError field_error = finish_chat(fields)) return *field_error;
  if (FieldError field_error =
          read_members<Conversation>(document.object(), limits, fields.conversation, conversation_fields())) {
    return *field_error;
  }
  if (!fields.thinking_budget) fields.thinking_budget = fields.conversation.thinking_budget;
  if (fields.conversation.hides_reasoning) fields.include_reasoning = false;
  if (fields.conversation.allows_one_call) fields.parallel_tool_calls = false;
  if (FieldError field_error = check_common(fields)) return *field_error;
  if (FieldError field_error = finish_conversation(fields.conversation)) return *field_error;
  log_ignored(document.object(), common_fields(), kChatFields, conversation_fields());
  return ChatRequest(std::move(fields));
}

void append_request_schemas(std::string& out, const RequestLimits& limits) {
  SchemaWriter schema(out, limits);
  JsonWriter& json = schema.json();
  json.key("CompletionRequest").begin_object().member("type", "object");
  json.key("required").raw(R"(["prompt"])").key("properties").begin_object();
  describe_members<CommonRequest>(schema, common_fields());
  describe_members<CompletionRequest>(schema, kCompletionFields, "prompt");
  describe_unsupported(schema, false);
  json.end_object();
  describe_switches(schema, false);
  json.end_object().key("ChatCompletionRequest").begin_object().member("type", "object");
  json.key("required").raw(R"(["messages"])").key("properties").begin_object();
  describe_members<CommonRequest>(schema, common_fields());
  describe_members<ChatFields>(schema, kChatFields);
  describe_members<ChatRequest>(schema, thinking_budget_fields());
  describe_members<Conversation>(schema, conversation_fields(), "messages");
  describe_unsupported(schema, true);
  json.end_object();
  describe_switches(schema, true);
  json.end_object().key("ChatMessage").begin_object();
  describe_message(schema);
  json.end_object();
  describe_utility_requests(schema);
  describe_pooling_requests(schema);
}

}  // namespace millrace::server::openai
