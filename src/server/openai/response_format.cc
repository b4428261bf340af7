#include "server/openai/response_format.h"

#include <algorithm>
#include <array>

namespace millrace::server::openai {
namespace {

using Kind = ResponseFormat::Kind;

constexpr size_t kMaxChoices = 10'000;

FieldError set_response_format(std::string_view field, std::string name, Kind kind, std::vector<std::string> texts,
                               CommonRequest& request) {
  if (request.response_format && request.response_format->field != field) {
    return bad_request(field, "{}: {} says already what the answer has to be", field, request.response_format->field);
  }
  request.response_format = ResponseFormat{kind, std::move(texts), std::string(field), std::move(name)};
  return std::nullopt;
}

/// Drops the value that the same field gave before, if a body has it twice.
void clear_response_format(std::string_view field, CommonRequest& request) {
  if (request.response_format && request.response_format->field == field) request.response_format.reset();
}

FieldError read_text(std::string_view field, const std::string& name, Json value, Kind kind, CommonRequest& request) {
  std::string text;
  if (FieldError field_error = read_string(name, value, text)) return field_error;
  if (text.empty()) return bad_request(field, "{}: it is empty, and null stands for no format", name);
  clear_response_format(field, request);
  return set_response_format(field, name, kind, {std::move(text)}, request);
}

FieldError read_schema(std::string_view field, const std::string& name, Json value, CommonRequest& request) {
  if (value.is_string()) return read_text(field, name, value, Kind::kJsonSchema, request);
  if (!value.is_object()) return wrong_type(name, value, "a JSON schema, as an object or as its text");
  return set_response_format(field, name, Kind::kJsonSchema, {to_json(value)}, request);
}

FieldError read_choice(std::string_view field, const std::string& name, Json value, CommonRequest& request) {
  JsonArray array;
  if (!value.get(array)) return wrong_type(name, value, "an array of strings");
  if (array.size() > kMaxChoices) {
    return bad_request(field, "{}: found {} choices, wanted at most {}", name, array.size(), kMaxChoices);
  }
  std::vector<std::string> choices;
  for (const Json item : array) {
    if (FieldError field_error = read_string(name, item, choices.emplace_back())) return field_error;
    if (choices.back().empty()) return bad_request(field, "{}: a choice is empty", name);
  }
  if (choices.empty()) return bad_request(field, "{}: it is empty, and null stands for no format", name);
  clear_response_format(field, request);
  return set_response_format(field, name, Kind::kChoice, std::move(choices), request);
}

/// Reads the optional schema of {"type": "json_object", "schema": {…}}.
FieldError read_json_object(std::string_view name, Json schema, CommonRequest& request) {
  JsonObject object;
  const bool has_schema = !is_absent(schema);
  if (has_schema && !schema.get(object)) return wrong_type(fmt::format("{}.schema", name), schema, "an object");
  if (object.empty()) return set_response_format(name, std::string(name), Kind::kJsonObject, {}, request);
  return read_schema(name, fmt::format("{}.schema", name), schema, request);
}

}  // namespace

FieldError read_response_format(std::string_view name, Json value, const RequestLimits&, CommonRequest& request) {
  JsonObject object;
  if (!value.get(object)) return wrong_type(name, value, "an object");
  std::string_view type;
  if (!object["type"].get(type)) {
    return bad_request(name, "{}: type is missing, or no string", name);
  }
  clear_response_format(name, request);
  if (type == "text") return std::nullopt;
  if (type == "json_object") return read_json_object(name, object["schema"], request);
  if (type != "json_schema") {
    return bad_request(name, "{}: type '{}' is not supported, wanted text, json_object or json_schema", name,
                       type.substr(0, 64));
  }
  JsonObject format;
  if (!object["json_schema"].get(format)) {
    return bad_request(name, "{}.json_schema: missing, or no object", name);
  }
  Json schema;
  if (!format["schema"].get(schema) || schema.is_null()) {
    return set_response_format(name, std::string(name), Kind::kJsonObject, {}, request);
  }
  if (!schema.is_object()) return wrong_type(fmt::format("{}.json_schema.schema", name), schema, "an object");
  return read_schema(name, fmt::format("{}.json_schema.schema", name), schema, request);
}

void describe_response_format(SchemaWriter& schema) {
  schema.json().key("anyOf").raw(
      R"([{"type":"null"},{"type":"object","required":["type"],"properties":{"type":{"const":"text"}}},)"
      R"({"type":"object","required":["type"],"properties":{"type":{"const":"json_object"},)"
      R"("schema":{"type":["object","null"]}}},)"
      R"({"type":"object","required":["type","json_schema"],"properties":{"type":{"const":"json_schema"},)"
      R"("json_schema":{"type":"object","properties":{"schema":{"type":["object","null"]}}}}}])");
}

FieldError read_structured_outputs(std::string_view name, Json value, const RequestLimits&, CommonRequest& request) {
  JsonObject object;
  if (!value.get(object)) return wrong_type(name, value, "an object");
  clear_response_format(name, request);
  std::string_view found;
  for (const auto& [key, member] : object) {
    if (member.is_null()) continue;
    const std::string path = fmt::format("{}.{}", name, key.substr(0, 64));
    const bool is_form = key == "json" || key == "regex" || key == "choice" || key == "grammar" || key == "json_object";
    if (key == "structural_tag" || key == "whitespace_pattern") {
      return bad_request(name, "{}: not supported by this server", path);
    }
    if (!is_form) continue;
    bool flag = true;
    if (key == "json_object") {
      if (FieldError field_error = read_bool(path, member, flag)) return field_error;
      if (!flag) continue;
    }
    if (!found.empty() && found != key) return bad_request(name, "{}: found {} and {}, wanted one", name, found, key);
    found = key;
    FieldError field_error;
    if (key == "json_object") field_error = set_response_format(name, path, Kind::kJsonObject, {}, request);
    if (key == "json") field_error = read_schema(name, path, member, request);
    if (key == "regex") field_error = read_text(name, path, member, Kind::kRegex, request);
    if (key == "grammar") field_error = read_text(name, path, member, Kind::kGrammar, request);
    if (key == "choice") field_error = read_choice(name, path, member, request);
    if (field_error) return field_error;
  }
  return std::nullopt;
}

void describe_structured_outputs(SchemaWriter& schema) {
  schema.type("object");
  schema.json()
      .key("properties")
      .raw(R"({"json":{"type":["object","string","null"],"minLength":1},)"
           R"("regex":{"type":["string","null"],"minLength":1},)"
           R"("choice":{"type":["array","null"],"minItems":1,"maxItems":10000,)"
           R"("items":{"type":"string","minLength":1}},)"
           R"("grammar":{"type":["string","null"],"minLength":1},"json_object":{"type":["boolean","null"]},)"
           R"("structural_tag":{"type":"null"},"whitespace_pattern":{"type":"null"}})");
}

FieldError read_guided_json(std::string_view name, Json value, const RequestLimits&, CommonRequest& request) {
  return read_schema(name, std::string(name), value, request);
}

FieldError read_guided_regex(std::string_view name, Json value, const RequestLimits&, CommonRequest& request) {
  return read_text(name, std::string(name), value, Kind::kRegex, request);
}

FieldError read_guided_grammar(std::string_view name, Json value, const RequestLimits&, CommonRequest& request) {
  return read_text(name, std::string(name), value, Kind::kGrammar, request);
}

FieldError read_guided_choice(std::string_view name, Json value, const RequestLimits&, CommonRequest& request) {
  return read_choice(name, std::string(name), value, request);
}

void describe_guided_json(SchemaWriter& schema) {
  schema.json().key("type").raw(schema.nullable() ? R"(["object","string","null"])" : R"(["object","string"])");
  schema.json().member("minLength", 1);
}

void describe_guided_text(SchemaWriter& schema) {
  schema.type("string");
  schema.json().member("minLength", 1);
}

void describe_guided_choice(SchemaWriter& schema) {
  schema.type("array");
  schema.json()
      .member("minItems", 1)
      .member("maxItems", kMaxChoices)
      .key("items")
      .raw(R"({"type":"string","minLength":1})");
}

bool may_constrain_output(std::string_view body) {
  constexpr std::array<std::string_view, 9> kNames = {"\"response_format\"", "\"structured_outputs\"",
                                                      "\"guided_",           "\"json_schema\"",
                                                      "\"regex\"",           "\"ebnf\"",
                                                      "\"grammar\"",         "\"tools\"",
                                                      "\"thinking"};
  return std::ranges::any_of(kNames, [body](std::string_view name) { return body.find(name) != body.npos; });
}

}  // namespace millrace::server::openai
