#include <array>

#include "server/openai/field.h"

namespace millrace::server::openai {
namespace {

using Limits = RequestLimits;
using Name = std::string_view;

constexpr int64_t kMaxLogprobs = 20;

Refusal read_prompt(Name name, Json value, const Limits& limits, CompletionRequest& request) {
  request.prompts.clear();
  if (value.is_string()) {
    std::string text;
    if (Refusal refusal = read_string(name, value, text)) return refusal;
    request.prompts.emplace_back(std::move(text));
    return std::nullopt;
  }
  simdjson::dom::array array;
  constexpr std::string_view kWanted = "a string, an array of strings, of token ids, or of arrays of token ids";
  if (value.get_array().get(array) != simdjson::SUCCESS) return wrong_type(name, value, kWanted);
  if (array.begin() == array.end()) return bad_request(name, "prompt: found an empty array, wanted {}", kWanted);
  const Json first = *array.begin();
  if (first.is_int64()) {
    std::vector<TokenId> ids;
    if (Refusal refusal = read_token_ids(name, value, limits.vocab_size, ids)) return refusal;
    request.prompts.emplace_back(std::move(ids));
    return std::nullopt;
  }
  if (array.size() > limits.max_choices) {
    return bad_request(name, "prompt: found {} prompts, wanted at most {}", array.size(), limits.max_choices);
  }
  for (const Json item : array) {
    if (item.is_string() && first.is_string()) {
      std::string text;
      if (Refusal refusal = read_string(name, item, text)) return refusal;
      request.prompts.emplace_back(std::move(text));
    } else if (item.is_array() && first.is_array()) {
      std::vector<TokenId> ids;
      if (Refusal refusal = read_token_ids(name, item, limits.vocab_size, ids)) return refusal;
      request.prompts.emplace_back(std::move(ids));
    } else {
      return wrong_type(name, item, kWanted);
    }
  }
  return std::nullopt;
}

constexpr std::array kCompletionFields = {
    Field<CompletionRequest>{"prompt", read_prompt},
    Field<CompletionRequest>{
        "echo", [](Name n, Json v, const Limits&, CompletionRequest& r) { return read_bool(n, v, r.echo); }},
    Field<CompletionRequest>{"logprobs", [](Name n, Json v, const Limits&, CompletionRequest& r) {
                               return read_int(n, v, 0, kMaxLogprobs, r.top_logprobs);
                             }},
};

/// Chat logprobs are two fields: whether, and how many alternatives.
struct ChatFields {
  ChatRequest& request;
  bool logprobs = false;
  std::optional<int32_t> top_logprobs;
  std::optional<uint32_t> max_completion_tokens;
};

constexpr std::array kChatFields = {
    Field<ChatFields>{"logprobs",
                      [](Name n, Json v, const Limits&, ChatFields& f) { return read_bool(n, v, f.logprobs); }},
    Field<ChatFields>{"top_logprobs", [](Name n, Json v, const Limits&, ChatFields& f) {
                        return read_int(n, v, 0, kMaxLogprobs, f.top_logprobs.emplace());
                      }},
    Field<ChatFields>{"max_completion_tokens", [](Name n, Json v, const Limits&, ChatFields& f) {
                        return read_int(n, v, 1, std::numeric_limits<int32_t>::max(),
                                        f.max_completion_tokens.emplace());
                      }},
};

Refusal finish_chat(const ChatFields& fields) {
  ChatRequest& request = fields.request;
  if (fields.top_logprobs && !fields.logprobs && *fields.top_logprobs > 0) {
    return bad_request("top_logprobs", "top_logprobs: allowed only with logprobs true");
  }
  if (fields.logprobs) request.top_logprobs = fields.top_logprobs.value_or(0);
  if (fields.max_completion_tokens) request.max_tokens = fields.max_completion_tokens;
  if (request.max_tokens && *request.max_tokens == 0) {
    return bad_request("max_tokens", "max_tokens: found 0, wanted at least 1");
  }
  return std::nullopt;
}

constexpr std::array kDetokenizeFields = {
    Field<DetokenizeRequest>{
        "model", [](Name n, Json v, const Limits&, DetokenizeRequest& r) { return read_string(n, v, r.model); }},
    Field<DetokenizeRequest>{"tokens", [](Name n, Json v, const Limits&, DetokenizeRequest& r) {
                               constexpr uint32_t kAny = std::numeric_limits<int32_t>::max();
                               return read_token_ids(n, v, kAny, r.tokens);
                             }},
    Field<DetokenizeRequest>{"skip_special_tokens", [](Name n, Json v, const Limits&, DetokenizeRequest& r) {
                               return read_bool(n, v, r.skip_special_tokens);
                             }},
};

struct TokenizeFields {
  TokenizeRequest& request;
  std::optional<std::string> prompt;
};

Refusal read_tokenize_prompt(Name name, Json value, const Limits&, TokenizeFields& fields) {
  return read_string(name, value, fields.prompt.emplace());
}

constexpr std::array kTokenizeFields = {
    Field<TokenizeFields>{"model", [](Name n, Json v, const Limits&, TokenizeFields& f) {
                            return read_string(n, v, f.request.model);
                          }},
    Field<TokenizeFields>{"prompt", read_tokenize_prompt},
    Field<TokenizeFields>{"content", read_tokenize_prompt},
    Field<TokenizeFields>{"add_special_tokens", [](Name n, Json v, const Limits&, TokenizeFields& f) {
                            return read_bool(n, v, f.request.add_special_tokens.emplace());
                          }},
    Field<TokenizeFields>{"return_token_strs", [](Name n, Json v, const Limits&, TokenizeFields& f) {
                            return read_bool(n, v, f.request.return_token_strings);
                          }},
};

Refusal read_abort_id(Name name, Json value, const Limits&, AbortRequest& request) {
  return read_string(name, value, request.request_id);
}

constexpr std::array kAbortFields = {
    Field<AbortRequest>{"rid", read_abort_id},
    Field<AbortRequest>{"request_id", read_abort_id},
    Field<AbortRequest>{"abort_all",
                        [](Name n, Json v, const Limits&, AbortRequest& r) { return read_bool(n, v, r.all); }},
};

constexpr float kMostFlushSeconds = 3600;

constexpr std::array kFlushFields = {
    Field<FlushRequest>{"timeout",
                        [](Name n, Json v, const Limits&, FlushRequest& r) {
                          return read_float(n, v, 0, kMostFlushSeconds, false, r.timeout_s);
                        }},
};

Refusal read_pause_mode(Name name, Json value, const Limits&, PauseRequest& request) {
  std::string mode;
  if (Refusal refusal = read_string(name, value, mode)) return refusal;
  if (mode == "in_place") {
    request.mode = sched::PauseMode::kInPlace;
  } else if (mode == "retract") {
    request.mode = sched::PauseMode::kRetract;
  } else if (mode == "abort") {
    request.mode = sched::PauseMode::kAbort;
  } else {
    return bad_request("mode", "mode: found '{}', wanted abort, retract or in_place", mode.substr(0, 64));
  }
  return std::nullopt;
}

constexpr std::array kPauseFields = {
    Field<PauseRequest>{"mode", read_pause_mode},
};

/// An empty body stands for an empty object.
template <class Request>
ApiResult<Request> parse_optional(const std::string& body, std::span<const Field<Request>> fields) {
  Request request;
  if (body.empty()) return request;
  Document document;
  if (Refusal refusal = document.parse(body)) return *refusal;
  if (Refusal refusal = read_members<Request>(document.object(), {}, request, fields)) return *refusal;
  return request;
}

}  // namespace

ApiResult<CompletionRequest> parse_completion_request(const std::string& body, const RequestLimits& limits) {
  Document document;
  CompletionRequest request;
  if (Refusal refusal = document.parse(body)) return *refusal;
  if (Refusal refusal = check_unsupported(document.object())) return *refusal;
  if (Refusal refusal = read_members<CommonRequest>(document.object(), limits, request, common_fields())) {
    return *refusal;
  }
  if (Refusal refusal = read_members<CompletionRequest>(document.object(), limits, request, kCompletionFields)) {
    return *refusal;
  }
  if (Refusal refusal = check_common(request)) return *refusal;
  if (request.prompts.empty()) return bad_request("prompt", "prompt: missing");
  if (request.max_tokens && *request.max_tokens == 0 && !request.echo) {
    return bad_request("max_tokens", "max_tokens: found 0, wanted at least 1 (0 only with echo)");
  }
  if (request.prompts.size() * request.n > limits.max_choices) {
    return bad_request("n", "{} prompts times n = {} give more than {} choices", request.prompts.size(), request.n,
                       limits.max_choices);
  }
  return request;
}

ApiResult<ChatRequest> parse_chat_request(const std::string& body, const RequestLimits& limits) {
  Document document;
  ChatRequest request;
  ChatFields fields{request, false, std::nullopt, std::nullopt};
  if (Refusal refusal = document.parse(body)) return *refusal;
  if (Refusal refusal = check_unsupported(document.object())) return *refusal;
  if (Refusal refusal = read_members<CommonRequest>(document.object(), limits, request, common_fields())) {
    return *refusal;
  }
  if (Refusal refusal = read_members<ChatFields>(document.object(), limits, fields, kChatFields)) return *refusal;
  if (Refusal refusal = finish_chat(fields)) return *refusal;
  if (Refusal refusal = read_members<Conversation>(document.object(), limits, request.conversation,
                                                   conversation_fields())) {
    return *refusal;
  }
  if (Refusal refusal = check_common(request)) return *refusal;
  if (Refusal refusal = check_conversation(request.conversation)) return *refusal;
  return request;
}

ApiResult<TokenizeRequest> parse_tokenize_request(const std::string& body, const RequestLimits& limits) {
  Document document;
  TokenizeRequest request;
  TokenizeFields fields{request, std::nullopt};
  if (Refusal refusal = document.parse(body)) return *refusal;
  if (Refusal refusal = read_members<TokenizeFields>(document.object(), limits, fields, kTokenizeFields)) {
    return *refusal;
  }
  if (fields.prompt) {
    request.input = std::move(*fields.prompt);
    return request;
  }
  Conversation conversation;
  if (Refusal refusal = read_members<Conversation>(document.object(), limits, conversation, conversation_fields())) {
    return *refusal;
  }
  if (conversation.messages.empty()) return bad_request("prompt", "prompt: missing, as is messages");
  if (Refusal refusal = check_conversation(conversation)) return *refusal;
  request.input = std::move(conversation);
  return request;
}

ApiResult<DetokenizeRequest> parse_detokenize_request(const std::string& body, const RequestLimits& limits) {
  Document document;
  DetokenizeRequest request;
  if (Refusal refusal = document.parse(body)) return *refusal;
  if (document.object()["tokens"].error() != simdjson::SUCCESS) return bad_request("tokens", "tokens: missing");
  if (Refusal refusal = read_members<DetokenizeRequest>(document.object(), limits, request, kDetokenizeFields)) {
    return *refusal;
  }
  return request;
}

ApiResult<Conversation> parse_template_request(const std::string& body, const RequestLimits& limits) {
  Document document;
  Conversation conversation;
  if (Refusal refusal = document.parse(body)) return *refusal;
  if (Refusal refusal = check_unsupported(document.object())) return *refusal;
  if (Refusal refusal = read_members<Conversation>(document.object(), limits, conversation, conversation_fields())) {
    return *refusal;
  }
  if (Refusal refusal = check_conversation(conversation)) return *refusal;
  return conversation;
}

ApiResult<AbortRequest> parse_abort_request(const std::string& body) {
  Document document;
  AbortRequest request;
  if (Refusal refusal = document.parse(body)) return *refusal;
  if (Refusal refusal = read_members<AbortRequest>(document.object(), {}, request, kAbortFields)) return *refusal;
  if (request.request_id.empty() && !request.all) {
    return bad_request("request_id", "request_id: missing, as is abort_all");
  }
  return request;
}

ApiResult<FlushRequest> parse_flush_request(const std::string& body) {
  return parse_optional<FlushRequest>(body, kFlushFields);
}

ApiResult<PauseRequest> parse_pause_request(const std::string& body) {
  return parse_optional<PauseRequest>(body, kPauseFields);
}

}  // namespace millrace::server::openai
