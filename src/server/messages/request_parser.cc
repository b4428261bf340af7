#include <algorithm>
#include <array>

#include "server/messages/conversation_builder.h"
#include "server/messages/request.h"
#include "server/messages/tools.h"
#include "server/openai/field.h"

namespace millrace::server::messages {

using openai::ApiResult;
using openai::bad_request;
using openai::ChatRequest;
using openai::Field;
using openai::FieldError;
using openai::Json;
using openai::RequestLimits;
using openai::SchemaWriter;

namespace {

constexpr int64_t kMinThinkingBudget = 1024;
constexpr std::array<std::string_view, 5> kEfforts = {"low", "medium", "high", "xhigh", "max"};

/// The members of a body. Those that depend on each other are read once all are known.
struct MessageFields : ChatRequest {
  Json messages;
  Json system;
  Json tools;
  Json tool_choice;
  std::optional<int64_t> budget;
};

template <Json MessageFields::* kMember>
FieldError keep(std::string_view, Json value, const RequestLimits&, MessageFields& fields) {
  fields.*kMember = value;
  return std::nullopt;
}

FieldError read_stop_sequences(std::string_view name, Json value, const RequestLimits& limits, MessageFields& fields) {
  if (!value.is_array()) return openai::wrong_type(name, value, "an array of strings");
  const auto common = openai::common_fields();
  return std::ranges::find(common, "stop", &Field<openai::CommonRequest>::name)->read(name, value, limits, fields);
}

/// Reads how the model thinks, and for how many tokens at most.
FieldError read_thinking(std::string_view name, Json value, const RequestLimits&, MessageFields& fields) {
  Block thinking;
  if (FieldError error = read_block(std::string(name), value, thinking)) return error;
  fields.budget.reset();
  const std::string_view type = thinking.type;
  if (type == "enabled") {
    int64_t& budget = fields.budget.emplace();
    const Json given = thinking.members["budget_tokens"];
    const std::string path = thinking.path + ".budget_tokens";
    if (FieldError error = openai::read_integer(path, given, kMinThinkingBudget, openai::kInt32Max, budget))
      return error;
  } else if (type != "adaptive" && type != "between_tools" && type != "disabled") {
    return bad_request(name, "{}.type: found '{}', wanted enabled, adaptive, between_tools or disabled", name,
                       type.substr(0, 64));
  }
  fields.conversation.enable_thinking = type != "disabled";
  return std::nullopt;
}

/// Reads the response format: {"type": "json_schema", "schema": {…}}.
FieldError read_format(const std::string& path, std::string_view field, Json value, MessageFields& fields) {
  Block format;
  if (FieldError error = read_block(path, value, format)) return error;
  if (format.type != "json_schema") {
    return bad_request(field, "{}.type: found '{}', wanted json_schema", path, format.type.substr(0, 64));
  }
  const Json schema = format.members["schema"];
  if (!schema.is_object()) return openai::wrong_type(path + ".schema", schema, "a JSON schema, as an object");
  if (fields.response_format && fields.response_format->field != field) {
    return bad_request(field, "{}: {} says already what the answer has to be", path, fields.response_format->field);
  }
  fields.response_format = openai::ResponseFormat{.kind = openai::ResponseFormat::Kind::kJsonSchema,
                                                  .texts = {to_json(schema)},
                                                  .field = std::string(field),
                                                  .name = path + ".schema"};
  return std::nullopt;
}

FieldError read_output_format(std::string_view name, Json value, const RequestLimits&, MessageFields& fields) {
  return read_format(std::string(name), name, value, fields);
}

FieldError read_output_config(std::string_view name, Json value, const RequestLimits&, MessageFields& fields) {
  JsonObject config;
  if (!value.get(config)) return openai::wrong_type(name, value, "an object");
  if (const Json effort = config["effort"]; !effort.is_missing() && !effort.is_null()) {
    std::string& word = fields.conversation.reasoning_effort;
    if (FieldError error = openai::read_string(fmt::format("{}.effort", name), effort, word)) return error;
    if (std::ranges::find(kEfforts, word) == kEfforts.end()) {
      return bad_request(name, "{}.effort: found '{}', wanted low, medium, high, xhigh or max", name,
                         word.substr(0, 64));
    }
  }
  const Json format = config["format"];
  if (format.is_missing() || format.is_null()) return std::nullopt;
  return read_format(fmt::format("{}.format", name), name, format, fields);
}

/// Describes a member by a schema of openapi_responses.json.
template <char const* kReference>
void describe_reference(SchemaWriter& schema) {
  JsonWriter& json = schema.json();
  json.key("anyOf").begin_array().begin_object().member("$ref", kReference).end_object();
  if (schema.nullable()) json.begin_object().member("type", "null").end_object();
  json.end_array();
}

constexpr char kSystemSchema[] = "#/components/schemas/MessageSystem";
constexpr char kToolsSchema[] = "#/components/schemas/MessageTools";
constexpr char kToolChoiceSchema[] = "#/components/schemas/MessageToolChoice";
constexpr char kThinkingSchema[] = "#/components/schemas/MessageThinking";
constexpr char kOutputConfigSchema[] = "#/components/schemas/MessageOutputConfig";
constexpr char kOutputFormatSchema[] = "#/components/schemas/MessageOutputFormat";

void describe_model(SchemaWriter& schema) {
  schema.set_nullable(false);
  schema.type("string");
  schema.json().member("minLength", 1);
}

void describe_max_tokens(SchemaWriter& schema) {
  schema.set_nullable(false);
  schema.integer(1, openai::kInt32Max);
}

void describe_messages(SchemaWriter& schema) {
  schema.set_nullable(false);
  schema.type("array");
  schema.json().member("minItems", 1).key("items").raw(R"({"$ref":"#/components/schemas/MessageParam"})");
}

void describe_stop_sequences(SchemaWriter& schema) {
  schema.type("array");
  schema.json().member("maxItems", 16).key("items").raw(R"({"type":"string","minLength":1,"maxLength":1024})");
}

using Fields = MessageFields;

constexpr Field<Fields> kMaxTokens = {
    "max_tokens", openai::integer_field<Fields, &Fields::max_tokens, 1, openai::kInt32Max>("max_tokens").read,
    describe_max_tokens, "Where the context ends before it, stop_reason is model_context_window_exceeded"};

/// Members that a request to count tokens has too.
constexpr std::array kPromptFields = {
    Field<Fields>{"model", openai::string_field<Fields, &Fields::model>("model").read, describe_model,
                  "A name that /v1/models gives"},
    Field<Fields>{"messages", keep<&Fields::messages>, describe_messages},
    Field<Fields>{"system", keep<&Fields::system>, describe_reference<kSystemSchema>,
                  "x-anthropic-billing-header and its pairs are removed"},
    Field<Fields>{"tools", keep<&Fields::tools>, describe_reference<kToolsSchema>,
                  "Those of a type other than custom are left out"},
    Field<Fields>{"tool_choice", keep<&Fields::tool_choice>, describe_reference<kToolChoiceSchema>},
    Field<Fields>{"thinking", read_thinking, describe_reference<kThinkingSchema>,
                  "The template's variable enable_thinking; budget_tokens bounds the thinking"},
    Field<Fields>{"output_config", read_output_config, describe_reference<kOutputConfigSchema>,
                  "effort: the template's variable reasoning_effort"},
    Field<Fields>{"output_format", read_output_format, describe_reference<kOutputFormatSchema>,
                  "The same as output_config.format"},
};
constexpr std::array kGenerationFields = {
    Field<Fields>{"stop_sequences", read_stop_sequences, describe_stop_sequences},
    openai::number_field<Fields, &Fields::temperature, 0.0, 2.0>("temperature"),
    openai::number_field<Fields, &Fields::top_p, 0.0, 1.0>("top_p"),
    openai::integer_field<Fields, &Fields::top_k, 0, openai::kInt32Max>("top_k", "0: off"),
    openai::flag_field<Fields, &Fields::stream>("stream"),
};

FieldError read_messages(Json value, const ToolList& tools, MessageFields& fields) {
  if (value.is_missing()) return bad_request("messages", "messages: missing");
  JsonArray array;
  if (!value.get(array)) return openai::wrong_type("messages", value, "an array of messages");
  if (array.empty()) {
    return bad_request("messages", "messages: found an empty array, wanted at least one message");
  }
  ConversationBuilder builder(tools, fields.conversation);
  if (!fields.system.is_missing()) {
    if (FieldError error = builder.add_system("system", fields.system)) return error;
  }
  size_t index = 0;
  for (const Json item : array) {
    if (FieldError error = builder.add_message(fmt::format("messages[{}]", index++), item)) return error;
  }
  return builder.finish();
}

/// Checks the relations between members, and reads those that depend on others.
FieldError finish(MessageFields& fields) {
  if (fields.model.empty()) return bad_request("model", "model: missing");
  ToolList tools;
  if (!fields.tools.is_missing()) {
    if (FieldError error = tools.read("tools", fields.tools)) return error;
  }
  tools.store(fields.conversation);
  if (!fields.tool_choice.is_missing()) {
    if (FieldError error = read_tool_choice("tool_choice", fields.tool_choice, fields)) return error;
  }
  if (FieldError error = read_messages(fields.messages, tools, fields)) return error;
  // Templates differ in which of the two they read.
  if (fields.conversation.enable_thinking == false) fields.conversation.reasoning_effort = "none";
  return openai::finish_conversation(fields.conversation);
}

FieldError check_budget(const MessageFields& fields) {
  // Between calls of tools there is more than one output to think for.
  const bool fits = !fields.budget || *fields.budget < *fields.max_tokens;
  if (fits || fields.conversation.has_tools()) return std::nullopt;
  return bad_request("thinking", "thinking.budget_tokens: found {}, wanted less than max_tokens {}", *fields.budget,
                     *fields.max_tokens);
}

}  // namespace

ApiResult<ChatRequest> parse_message_request(const std::string& body, const RequestLimits& limits) {
  openai::Document document;
  MessageFields fields;
  if (FieldError error = document.parse(body)) return *error;
  const JsonObject object = document.object();
  if (FieldError error = openai::read_members<Fields>(object, limits, fields, kPromptFields)) return *error;
  if (FieldError error = openai::read_members<Fields>(object, limits, fields, kGenerationFields)) return *error;
  if (FieldError error = openai::read_members<Fields>(object, limits, fields, {&kMaxTokens, 1})) return *error;
  if (!fields.max_tokens) return bad_request("max_tokens", "max_tokens: missing");
  if (FieldError error = finish(fields)) return *error;
  if (FieldError error = check_budget(fields)) return *error;
  if (fields.budget) {
    fields.thinking_budget =
        openai::ThinkingBudget{.tokens = static_cast<uint32_t>(*fields.budget), .field = "thinking", .is_wish = true};
  }
  fields.fills_context = true;
  return ChatRequest(std::move(fields));
}

ApiResult<ChatRequest> parse_count_request(const std::string& body, const RequestLimits& limits) {
  openai::Document document;
  MessageFields fields;
  if (FieldError error = document.parse(body)) return *error;
  if (FieldError error = openai::read_members<Fields>(document.object(), limits, fields, kPromptFields)) return *error;
  if (FieldError error = finish(fields)) return *error;
  return ChatRequest(std::move(fields));
}

void append_request_schemas(std::string& out, const RequestLimits& limits) {
  SchemaWriter schema(out, limits);
  JsonWriter& json = schema.json();
  json.key("MessageRequest").begin_object().member("type", "object");
  json.key("required").raw(R"(["model","messages","max_tokens"])").key("properties").begin_object();
  openai::describe_members<Fields>(schema, {&kMaxTokens, 1});
  openai::describe_members<Fields>(schema, kPromptFields);
  openai::describe_members<Fields>(schema, kGenerationFields);
  json.end_object().end_object().key("CountTokensRequest").begin_object().member("type", "object");
  json.key("required").raw(R"(["model","messages"])").key("properties").begin_object();
  openai::describe_members<Fields>(schema, kPromptFields);
  json.end_object().end_object();
}

}  // namespace millrace::server::messages
