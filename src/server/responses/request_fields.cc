#include "server/responses/request_fields.h"

#include <algorithm>
#include <array>
#include <vector>

#include "server/openai/thinking.h"
#include "text/unicode.h"

namespace millrace::server::responses {
namespace {

using openai::bad_request;
using openai::CommonRequest;
using openai::Conversation;
using openai::Field;
using openai::FieldError;
using openai::flag_field;
using openai::integer_field;
using openai::is_absent;
using openai::Json;
using openai::kInt32Max;
using openai::read_bool;
using openai::read_string;
using openai::SchemaWriter;
using openai::wrong_type;

using Fields = RequestFields;
using Limits = openai::RequestLimits;
using Name = std::string_view;

constexpr size_t kMaxMetadata = 16;
constexpr size_t kMaxMetadataName = 64;
constexpr size_t kMaxMetadataValue = 512;
/// Members of a chat that have another name or none here. A client that sends one means something else to happen.
struct Moved {
  std::string_view name;
  std::string_view successor;
};
constexpr std::array kMoved = {Moved{"messages", "input"},
                               Moved{"max_tokens", "max_output_tokens"},
                               Moved{"max_completion_tokens", "max_output_tokens"},
                               Moved{"response_format", "text.format"},
                               Moved{"reasoning_effort", "reasoning.effort"},
                               Moved{"logprobs", "include"},
                               Moved{"prompt_logprobs", ""},
                               Moved{"conversation", "previous_response_id"},
                               Moved{"prompt", "instructions"}};
/// Common members that this API has in another form.
constexpr std::array<std::string_view, 5> kOwnForms = {"n", "stream_options", "response_format", "prompt_logprobs",
                                                       "return_token_ids"};
/// Members of a conversation that this API has too, as vLLM does.
constexpr std::array<std::string_view, 4> kTemplateFields = {"chat_template", "chat_template_kwargs", "documents",
                                                             "enable_thinking"};

std::vector<Field<CommonRequest>> shared_fields() {
  std::vector<Field<CommonRequest>> fields;
  for (const Field<CommonRequest>& field : openai::common_fields()) {
    if (std::ranges::find(kOwnForms, field.name) == kOwnForms.end()) fields.push_back(field);
  }
  return fields;
}

std::vector<Field<Conversation>> template_fields() {
  std::vector<Field<Conversation>> fields;
  for (const Field<Conversation>& field : openai::conversation_fields()) {
    if (std::ranges::find(kTemplateFields, field.name) != kTemplateFields.end()) fields.push_back(field);
  }
  return fields;
}

template <auto kMember>
FieldError keep_value(Name, Json value, const Limits&, Fields& fields) {
  fields.*kMember = value;
  return std::nullopt;
}

FieldError read_text(Name name, Json value, const Limits&, Fields& fields) {
  JsonObject object;
  JsonObject format;
  if (!value.get(object)) return wrong_type(name, value, "an object");
  const Json given = object["format"];
  if (is_absent(given)) return std::nullopt;
  if (!given.get(format)) return wrong_type("text.format", given, "an object");
  std::string_view type;
  (void)format["type"].get(type);
  using Kind = openai::ResponseFormat::Kind;
  if (type == "text") return std::nullopt;
  if (type != "json_object" && type != "json_schema") {
    return bad_request("text.format", "text.format.type: found '{}', wanted text, json_object or json_schema",
                       type.substr(0, 64));
  }
  if (fields.response_format) {
    return bad_request("text.format", "text.format: {} says already what the output has to be",
                       fields.response_format->field);
  }
  fields.response_format = {.kind = Kind::kJsonObject, .texts = {}, .field = "text.format", .name = "text.format"};
  if (type == "json_object") return std::nullopt;
  const Json schema = format["schema"];
  if (!schema.is_object()) return wrong_type("text.format.schema", schema, "an object");
  fields.response_format->kind = Kind::kJsonSchema;
  fields.response_format->texts = {to_json(schema)};
  fields.response_format->name = "text.format.schema";
  return std::nullopt;
}

FieldError read_reasoning(Name name, Json value, const Limits& limits, Fields& fields) {
  JsonObject object;
  if (!value.get(object)) return wrong_type(name, value, "an object");
  const Json effort = object["effort"];
  if (is_absent(effort)) return std::nullopt;
  return openai::read_effort("reasoning.effort", effort, limits, fields.conversation);
}

FieldError read_include(Name name, Json value, const Limits&, Fields& fields) {
  JsonArray array;
  if (!value.get(array)) return wrong_type(name, value, "an array of strings");
  for (const Json item : array) {
    std::string_view word;
    if (!item.get(word)) return wrong_type(name, item, "a string");
    if (word == "message.output_text.logprobs") fields.has_logprobs = true;
  }
  return std::nullopt;
}

constexpr std::array<std::string_view, 2> kTruncations = {"auto", "disabled"};

void use_truncation(std::string_view word, Fields& fields) {
  fields.drops_oldest = word == "auto";
}

FieldError read_metadata(Name name, Json value, const Limits&, Fields&) {
  JsonObject object;
  if (!value.get(object)) return wrong_type(name, value, "an object of strings");
  if (object.size() > kMaxMetadata) {
    return bad_request(name, "{}: found {} members, wanted at most {}", name, object.size(), kMaxMetadata);
  }
  for (const auto& member : object) {
    std::string_view text;
    if (!member.value.get(text)) return wrong_type(name, member.value, "a string for each member");
    const size_t key_length = text::count_code_points(member.key);
    const size_t length = text::count_code_points(text);
    if (key_length <= kMaxMetadataName && length <= kMaxMetadataValue) continue;
    return bad_request(name, "{}: found a member of {} and {} characters, wanted at most {} and {}", name, key_length,
                       length, kMaxMetadataName, kMaxMetadataValue);
  }
  return std::nullopt;
}

FieldError read_n(Name name, Json value, const Limits&, Fields& fields) {
  return openai::read_int(name, value, 1, 1, fields.n);
}

FieldError accept_object(Name name, Json value, const Limits&, Fields&) {
  if (!value.is_object()) return wrong_type(name, value, "an object");
  return std::nullopt;
}

FieldError accept_string(Name name, Json value, const Limits&, Fields&) {
  if (!value.is_string()) return wrong_type(name, value, "a string");
  return std::nullopt;
}

FieldError accept_count(Name name, Json value, const Limits&, Fields&) {
  int64_t count = 0;
  return openai::read_integer(name, value, 0, kInt32Max, count);
}

void describe_string(SchemaWriter& schema) {
  schema.type("string");
}

void describe_object(SchemaWriter& schema) {
  schema.type("object");
}

void describe_input(SchemaWriter& schema) {
  schema.json().key("anyOf").raw(R"([{"type":"string"},{"type":"array","items":{"type":"object"}},{"type":"null"}])");
}

void describe_text(SchemaWriter& schema) {
  schema.json().key("anyOf").raw(
      R"([{"type":"null"},{"type":"object","properties":{"format":{"anyOf":[{"type":"null"},)"
      R"({"type":"object","required":["type"],"properties":{"type":{"enum":["text","json_object"]}}},)"
      R"({"type":"object","required":["type","schema"],"properties":{"type":{"const":"json_schema"},)"
      R"("schema":{"type":"object"}}}]}}}])");
}

void describe_reasoning(SchemaWriter& schema) {
  schema.type("object");
  schema.json().key("properties").begin_object().key("effort").begin_object();
  openai::describe_effort(schema);
  schema.json().end_object().end_object();
}

void describe_include(SchemaWriter& schema) {
  schema.type("array");
  schema.json().key("items").raw(R"({"type":"string"})");
}

void describe_metadata(SchemaWriter& schema) {
  schema.type("object");
  schema.json().member("maxProperties", kMaxMetadata).key("propertyNames").begin_object();
  schema.json().member("maxLength", kMaxMetadataName).end_object().key("additionalProperties").begin_object();
  schema.json().member("type", "string").member("maxLength", kMaxMetadataValue).end_object();
}

void describe_tools(SchemaWriter& schema) {
  schema.type("array");
  schema.json().key("items").raw(R"({"type":"object","properties":{"type":{"type":["string","null"]}}})");
}

void describe_tool_choice(SchemaWriter& schema) {
  schema.json().key("anyOf").raw(R"([{"enum":["auto","none","required",null]},{"type":"object","required":["type"],)"
                                 R"("properties":{"type":{"enum":["function","custom","allowed_tools"]}}}])");
}

constexpr std::array kFields = {
    Field<Fields>{"input", keep_value<&Fields::input_value>, describe_input, "A text, or items in order"},
    Field<Fields>{"instructions",
                  [](Name n, Json v, const Limits&, Fields& f) { return read_string(n, v, f.instructions); },
                  describe_string, "A system message before the input"},
    integer_field<Fields, &Fields::max_tokens, 1, kInt32Max>("max_output_tokens", "Default: what the context holds"),
    Field<Fields>{"tools", keep_value<&Fields::tools>, describe_tools,
                  "Functions, namespaces of functions, custom tools; tools that servers host are left out"},
    Field<Fields>{"tool_choice", keep_value<&Fields::tool_choice>, describe_tool_choice},
    flag_field<Fields, &Fields::parallel_tool_calls>("parallel_tool_calls",
                                                     "Default true; else the output ends with its first call"),
    Field<Fields>{"text", read_text, describe_text, "What the output must match"},
    Field<Fields>{"reasoning", read_reasoning, describe_reasoning, "Effort: a variable of the template"},
    Field<Fields>{"include", read_include, describe_include, "message.output_text.logprobs adds logprobs"},
    openai::alternatives_field<Fields, &Fields::alternatives>("top_logprobs", "Only where include adds logprobs"),
    flag_field<Fields, &Fields::store>("store", "Default true: the response can be fetched and continued"),
    flag_field<Fields, &Fields::background>("background", "Generates the response without a client that waits for it"),
    Field<Fields>{"previous_response_id",
                  [](Name n, Json v, const Limits&, Fields& f) { return read_string(n, v, f.previous_response_id); },
                  describe_string, "Its items come before the input; its instructions do not"},
    openai::word_field<Fields, kTruncations, use_truncation>(
        "truncation", "auto: the oldest items are dropped where the context is too short"),
    Field<Fields>{"metadata", read_metadata, describe_metadata},
    Field<Fields>{"n", read_n, [](SchemaWriter& s) { s.integer(1, 1); }},
    flag_field<Fields, &Fields::include_reasoning>("include_reasoning", "Default true; else it is left out"),
    Field<Fields>{"stream_options", accept_object, describe_object, "Without effect"},
    Field<Fields>{"user", accept_string, describe_string, "Without effect"},
    Field<Fields>{"safety_identifier", accept_string, describe_string, "Without effect"},
    Field<Fields>{"service_tier", accept_string, describe_string, "Without effect"},
    Field<Fields>{"prompt_cache_key", accept_string, describe_string, "Without effect"},
    Field<Fields>{"max_tool_calls", accept_count, [](SchemaWriter& s) { s.integer(0, kInt32Max); }, "Without effect"},
};

FieldError check_moved(JsonObject object) {
  for (const auto& member : object) {
    const auto moved = std::ranges::find(kMoved, member.key, &Moved::name);
    if (moved == kMoved.end() || member.value.is_null()) continue;
    if (moved->successor.empty()) return bad_request(moved->name, "{}: not supported by /v1/responses", moved->name);
    return bad_request(moved->name, "{}: not a member of /v1/responses, which has {}", moved->name, moved->successor);
  }
  return std::nullopt;
}

void echo_reasoning(JsonWriter& json, Json reasoning) {
  json.key("reasoning").begin_object();
  for (const char* name : {"effort", "summary"}) {
    const Json value = reasoning[name];
    json.key(name).raw(value.is_missing() ? "null" : to_json(value));
  }
  json.end_object();
}

void echo_text(JsonWriter& json, Json text) {
  const Json format = text["format"];
  const Json verbosity = text["verbosity"];
  json.key("text").begin_object().key("format").raw(format.is_object() ? to_json(format) : R"({"type":"text"})");
  if (verbosity.is_string()) json.key("verbosity").raw(to_json(verbosity));
  json.end_object();
}

}  // namespace

FieldError read_fields(JsonObject object, const Limits& limits, RequestFields& fields) {
  static const std::vector<Field<CommonRequest>> common = shared_fields();
  static const std::vector<Field<Conversation>> of_template = template_fields();
  if (FieldError field_error = check_moved(object)) return field_error;
  if (FieldError field_error = openai::read_members<CommonRequest>(object, limits, fields, common)) return field_error;
  if (FieldError field_error = openai::read_members<Fields>(object, limits, fields, kFields)) return field_error;
  if (FieldError field_error = openai::read_members<Conversation>(object, limits, fields.conversation, of_template)) {
    return field_error;
  }
  if (FieldError field_error =
          openai::read_members<openai::ChatRequest>(object, limits, fields, openai::thinking_budget_fields())) {
    return field_error;
  }
  if (fields.has_logprobs) fields.top_logprobs = fields.alternatives.value_or(0);
  return std::nullopt;
}

std::string echo_fields(JsonObject object) {
  struct Echoed {
    std::string_view name;
    std::string_view otherwise;
  };
  constexpr std::array kEchoed = {Echoed{"instructions", "null"},
                                  Echoed{"metadata", "{}"},
                                  Echoed{"max_output_tokens", "null"},
                                  Echoed{"max_tool_calls", "null"},
                                  Echoed{"parallel_tool_calls", "true"},
                                  Echoed{"previous_response_id", "null"},
                                  Echoed{"prompt_cache_key", "null"},
                                  Echoed{"safety_identifier", "null"},
                                  Echoed{"store", "true"},
                                  Echoed{"background", "false"},
                                  Echoed{"tool_choice", "\"auto\""},
                                  Echoed{"tools", "[]"},
                                  Echoed{"top_logprobs", "0"},
                                  Echoed{"truncation", "\"disabled\""},
                                  Echoed{"user", "null"}};
  std::string out;
  JsonWriter json(out);
  json.begin_object();
  for (const Echoed& each : kEchoed) {
    const Json value = object[each.name];
    const bool is_given = !is_absent(value);
    json.key(each.name).raw(is_given ? to_json(value) : std::string(each.otherwise));
  }
  echo_reasoning(json, object["reasoning"]);
  echo_text(json, object["text"]);
  return out.substr(1);
}

void append_request_schema(std::string& out, const Limits& limits) {
  SchemaWriter schema(out, limits);
  JsonWriter& json = schema.json();
  json.key("ResponsesRequest").begin_object().member("type", "object").key("properties").begin_object();
  const std::vector<Field<CommonRequest>> common = shared_fields();
  const std::vector<Field<Conversation>> of_template = template_fields();
  openai::describe_members<CommonRequest>(schema, common);
  openai::describe_members<Fields>(schema, kFields);
  openai::describe_members<Conversation>(schema, of_template);
  openai::describe_members<openai::ChatRequest>(schema, openai::thinking_budget_fields());
  openai::describe_unsupported(schema, true);
  for (const Moved& moved : kMoved) json.key(moved.name).raw(R"({"type":"null"})");
  json.end_object();
  openai::describe_switches(schema, true);
  json.end_object();
}

}  // namespace millrace::server::responses
