#include <array>

#include "server/openai/field.h"

/// Parses the requests of the routes that do not generate.
namespace millrace::server::openai {
namespace {

using Limits = RequestLimits;
using Name = std::string_view;

constexpr int64_t kMaxRing = 1023;
constexpr uint32_t kAnyToken = std::numeric_limits<int32_t>::max();

constexpr std::array kDetokenizeFields = {
    string_field<DetokenizeRequest, &DetokenizeRequest::model>("model"),
    Field<DetokenizeRequest>{
        "tokens",
        [](Name n, Json v, const Limits&, DetokenizeRequest& r) { return read_token_ids(n, v, kAnyToken, r.tokens); },
        [](SchemaWriter& schema) { schema.token_ids(kAnyToken); }, "Ids outside the vocabulary become empty text"},
    flag_field<DetokenizeRequest, &DetokenizeRequest::skip_special_tokens>("skip_special_tokens"),
};

struct TokenizeFields : TokenizeRequest {
  std::optional<std::string> prompt;
  std::optional<std::string> content;
};

constexpr std::array kTokenizeFields = {
    string_field<TokenizeFields, &TokenizeFields::model>("model"),
    string_field<TokenizeFields, &TokenizeFields::prompt>("prompt", "A text; takes precedence over messages"),
    string_field<TokenizeFields, &TokenizeFields::content>("content", "Same as prompt, which takes precedence"),
    flag_field<TokenizeFields, &TokenizeFields::add_special_tokens>(
        "add_special_tokens", "Default true for prompt, false for content and messages"),
    flag_field<TokenizeFields, &TokenizeFields::add_special_tokens>("add_special", "The same as add_special_tokens"),
    flag_field<TokenizeFields, &TokenizeFields::return_token_strings>("return_token_strs"),
};

/// Reads a request id; an empty one is ignored.
FieldError read_abort_id(Name name, Json value, const Limits&, AbortRequest& request) {
  std::string id;
  if (FieldError field_error = read_string(name, value, id)) return field_error;
  if (!id.empty()) request.request_id = std::move(id);
  return std::nullopt;
}

void describe_text(SchemaWriter& schema) {
  schema.type("string");
}

constexpr std::array kAbortFields = {
    Field<AbortRequest>{"rid", read_abort_id, describe_text, "The same as request_id"},
    Field<AbortRequest>{"request_id", read_abort_id, describe_text, "A request's request_id, or its response's id"},
    flag_field<AbortRequest, &AbortRequest::all>("abort_all"),
    integer_field<AbortRequest, &AbortRequest::ring, 0, kMaxRing>("ring", "With abort_all; default all rings"),
};

constexpr std::array kFlushFields = {
    number_field<FlushRequest, &FlushRequest::timeout_s, 0.0, 3600.0>("timeout",
                                                                      "Seconds to wait for running requests"),
    integer_field<FlushRequest, &FlushRequest::ring, 0, kMaxRing>("ring", "Default all rings"),
};

constexpr std::array kRingFields = {
    integer_field<RingRequest, &RingRequest::ring, 0, kMaxRing>("ring", "A number from 0"),
    flag_field<RingRequest, &RingRequest::force>("force", "/restart_ring: also while the ring has requests"),
};

constexpr std::array<std::string_view, 3> kPauseModes = {"abort", "retract", "in_place"};

void use_pause_mode(std::string_view word, PauseRequest& request) {
  request.mode = word == "abort"     ? sched::PauseMode::kAbort
                 : word == "retract" ? sched::PauseMode::kRetract
                                     : sched::PauseMode::kInPlace;
}

constexpr std::array kPauseFields = {
    word_field<PauseRequest, kPauseModes, use_pause_mode>("mode", "Default abort"),
    integer_field<PauseRequest, &PauseRequest::ring, 0, kMaxRing>("ring", "Default all rings"),
};

/// Parses a body; an empty one stands for an empty object.
template <class Request>
ApiResult<Request> parse_optional(const std::string& body, std::span<const Field<Request>> fields) {
  Request request;
  if (body.empty()) return request;
  Document document;
  if (FieldError field_error = document.parse(body)) return *field_error;
  if (FieldError field_error = read_members<Request>(document.object(), {}, request, fields)) return *field_error;
  return request;
}

}  // namespace

ApiResult<TokenizeRequest> parse_tokenize_request(const std::string& body, const RequestLimits& limits) {
  Document document;
  TokenizeFields fields;
  Conversation conversation;
  if (FieldError field_error = document.parse(body)) return *field_error;
  if (FieldError field_error = check_unsupported(document.object(), true)) return *field_error;
  if (FieldError field_error = read_members<TokenizeFields>(document.object(), limits, fields, kTokenizeFields)) {
    return *field_error;
  }
  if (FieldError field_error =
          read_members<Conversation>(document.object(), limits, conversation, conversation_fields())) {
    return *field_error;
  }
  if (!fields.prompt && fields.content) {
    // llama.cpp's word, with its default.
    fields.prompt = std::move(fields.content);
    fields.add_special_tokens = fields.add_special_tokens.value_or(false);
  }
  if (fields.prompt) {
    fields.input = std::move(*fields.prompt);
    return TokenizeRequest(std::move(fields));
  }
  if (conversation.messages.empty()) return bad_request("prompt", "prompt: missing, as is messages");
  if (FieldError field_error = finish_conversation(conversation)) return *field_error;
  fields.input = std::move(conversation);
  return TokenizeRequest(std::move(fields));
}

ApiResult<DetokenizeRequest> parse_detokenize_request(const std::string& body, const RequestLimits& limits) {
  Document document;
  DetokenizeRequest request;
  if (FieldError field_error = document.parse(body)) return *field_error;
  Json tokens;
  if (!document.object()["tokens"].get(tokens) || tokens.is_null()) {
    return bad_request("tokens", "tokens: missing");
  }
  if (FieldError field_error = read_members<DetokenizeRequest>(document.object(), limits, request, kDetokenizeFields)) {
    return *field_error;
  }
  return request;
}

ApiResult<Conversation> parse_template_request(const std::string& body, const RequestLimits& limits) {
  Document document;
  Conversation conversation;
  if (FieldError field_error = document.parse(body)) return *field_error;
  if (FieldError field_error = check_unsupported(document.object(), true)) return *field_error;
  if (FieldError field_error =
          read_members<Conversation>(document.object(), limits, conversation, conversation_fields())) {
    return *field_error;
  }
  if (FieldError field_error = finish_conversation(conversation)) return *field_error;
  return conversation;
}

ApiResult<AbortRequest> parse_abort_request(const std::string& body) {
  Document document;
  AbortRequest request;
  if (FieldError field_error = document.parse(body)) return *field_error;
  if (FieldError field_error = read_members<AbortRequest>(document.object(), {}, request, kAbortFields))
    return *field_error;
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

ApiResult<RingRequest> parse_ring_request(const std::string& body) {
  return parse_optional<RingRequest>(body, kRingFields);
}

void describe_utility_requests(SchemaWriter& schema) {
  JsonWriter& json = schema.json();
  const auto open = [&json](std::string_view name) { json.key(name).begin_object().member("type", "object"); };
  open("TokenizeRequest");
  json.key("anyOf").raw(R"([{"required":["prompt"],"properties":{"prompt":{"type":"string"}}},)"
                        R"({"required":["content"],"properties":{"content":{"type":"string"}}},)"
                        R"({"required":["messages"],"properties":{"messages":{"type":"array"}}}])");
  json.key("properties").begin_object();
  describe_members<TokenizeFields>(schema, kTokenizeFields);
  describe_unsupported(schema, true);
  describe_members<Conversation>(schema, conversation_fields());
  json.end_object();
  describe_switches(schema, true);
  json.end_object();
  open("DetokenizeRequest");
  json.key("required").raw(R"(["tokens"])").key("properties").begin_object();
  describe_members<DetokenizeRequest>(schema, kDetokenizeFields, "tokens");
  json.end_object().end_object();
  open("TemplateRequest");
  json.key("required").raw(R"(["messages"])").key("properties").begin_object();
  describe_unsupported(schema, true);
  describe_members<Conversation>(schema, conversation_fields(), "messages");
  json.end_object();
  describe_switches(schema, true);
  json.end_object();
  open("AbortRequest");
  json.key("anyOf").raw(R"([{"required":["request_id"],"properties":{"request_id":{"type":"string","minLength":1}}},)"
                        R"({"required":["rid"],"properties":{"rid":{"type":"string","minLength":1}}},)"
                        R"({"required":["abort_all"],"properties":{"abort_all":{"const":true}}}])");
  json.key("properties").begin_object();
  describe_members<AbortRequest>(schema, kAbortFields);
  json.end_object().end_object();
  open("FlushRequest");
  json.key("properties").begin_object();
  describe_members<FlushRequest>(schema, kFlushFields);
  json.end_object().end_object();
  open("PauseRequest");
  json.key("properties").begin_object();
  describe_members<PauseRequest>(schema, kPauseFields);
  json.end_object().end_object();
  open("RingRequest");
  json.key("properties").begin_object();
  describe_members<RingRequest>(schema, kRingFields);
  json.end_object().end_object();
}

}  // namespace millrace::server::openai
