#include "server/openai/answer_form.h"

#include <algorithm>
#include <array>

namespace millrace::server::openai {
namespace {

using Notation = AnswerForm::Notation;

constexpr size_t kMaxChoices = 10'000;

Refusal set_form(std::string_view field, std::string name, Notation notation, std::vector<std::string> texts,
                 CommonRequest& request) {
  if (request.form && request.form->field != field) {
    return bad_request(field, "{}: {} says already what the answer has to be", field, request.form->field);
  }
  request.form = AnswerForm{notation, std::move(texts), std::string(field), std::move(name)};
  return std::nullopt;
}

/// What the same field said before, if a body has it twice.
void forget_form(std::string_view field, CommonRequest& request) {
  if (request.form && request.form->field == field) request.form.reset();
}

Refusal read_text(std::string_view field, const std::string& name, Json value, Notation notation,
                  CommonRequest& request) {
  std::string text;
  if (Refusal refusal = read_string(name, value, text)) return refusal;
  forget_form(field, request);
  if (text.empty()) return std::nullopt;
  return set_form(field, name, notation, {std::move(text)}, request);
}

Refusal read_schema(std::string_view field, const std::string& name, Json value, CommonRequest& request) {
  if (value.is_string()) return read_text(field, name, value, Notation::kJsonSchema, request);
  if (!value.is_object()) return wrong_type(name, value, "a JSON schema, as an object or as its text");
  return set_form(field, name, Notation::kJsonSchema, {simdjson::minify(value)}, request);
}

Refusal read_choice(std::string_view field, const std::string& name, Json value, CommonRequest& request) {
  simdjson::dom::array array;
  if (value.get_array().get(array) != simdjson::SUCCESS) return wrong_type(name, value, "an array of strings");
  if (array.size() > kMaxChoices) {
    return bad_request(field, "{}: found {} choices, wanted at most {}", name, array.size(), kMaxChoices);
  }
  std::vector<std::string> choices;
  for (const Json item : array) {
    if (Refusal refusal = read_string(name, item, choices.emplace_back())) return refusal;
    if (choices.back().empty()) return bad_request(field, "{}: a choice is empty", name);
  }
  forget_form(field, request);
  if (choices.empty()) return std::nullopt;
  return set_form(field, name, Notation::kChoice, std::move(choices), request);
}

}  // namespace

Refusal read_response_format(std::string_view name, Json value, const RequestLimits&, CommonRequest& request) {
  simdjson::dom::object object;
  if (value.get_object().get(object) != simdjson::SUCCESS) return wrong_type(name, value, "an object");
  std::string_view type;
  if (object["type"].get_string().get(type) != simdjson::SUCCESS) {
    return bad_request(name, "{}: type is missing, or no string", name);
  }
  forget_form(name, request);
  if (type == "text") return std::nullopt;
  if (type == "json_object") return set_form(name, std::string(name), Notation::kJsonObject, {}, request);
  if (type != "json_schema") {
    return bad_request(name, "{}: type '{}' is not supported, wanted text, json_object or json_schema", name,
                       type.substr(0, 64));
  }
  simdjson::dom::object format;
  if (object["json_schema"].get_object().get(format) != simdjson::SUCCESS) {
    return bad_request(name, "{}.json_schema: missing, or no object", name);
  }
  Json schema;
  if (format["schema"].get(schema) != simdjson::SUCCESS || schema.is_null()) {
    return set_form(name, std::string(name), Notation::kJsonObject, {}, request);
  }
  if (!schema.is_object()) return wrong_type(fmt::format("{}.json_schema.schema", name), schema, "an object");
  return read_schema(name, fmt::format("{}.json_schema.schema", name), schema, request);
}

void describe_response_format(SchemaWriter& schema) {
  schema.json().key("anyOf").raw(
      R"([{"type":"null"},{"type":"object","required":["type"],"properties":{"type":{"enum":["text","json_object"]}}},)"
      R"({"type":"object","required":["type","json_schema"],"properties":{"type":{"const":"json_schema"},)"
      R"("json_schema":{"type":"object","properties":{"schema":{"type":["object","null"]}}}}}])");
}

Refusal read_structured_outputs(std::string_view name, Json value, const RequestLimits&, CommonRequest& request) {
  simdjson::dom::object object;
  if (value.get_object().get(object) != simdjson::SUCCESS) return wrong_type(name, value, "an object");
  forget_form(name, request);
  std::string_view found;
  for (const auto& [key, member] : object) {
    if (member.is_null()) continue;
    const std::string place = fmt::format("{}.{}", name, key.substr(0, 64));
    const bool is_form = key == "json" || key == "regex" || key == "choice" || key == "grammar" || key == "json_object";
    if (key == "structural_tag" || key == "whitespace_pattern") {
      return bad_request(name, "{}: not supported by this server", place);
    }
    if (!is_form) continue;
    bool flag = true;
    if (key == "json_object") {
      if (Refusal refusal = read_bool(place, member, flag)) return refusal;
      if (!flag) continue;
    }
    if (!found.empty() && found != key) return bad_request(name, "{}: found {} and {}, wanted one", name, found, key);
    found = key;
    Refusal refusal;
    if (key == "json_object") refusal = set_form(name, place, Notation::kJsonObject, {}, request);
    if (key == "json") refusal = read_schema(name, place, member, request);
    if (key == "regex") refusal = read_text(name, place, member, Notation::kRegex, request);
    if (key == "grammar") refusal = read_text(name, place, member, Notation::kGrammar, request);
    if (key == "choice") refusal = read_choice(name, place, member, request);
    if (refusal) return refusal;
  }
  return std::nullopt;
}

void describe_structured_outputs(SchemaWriter& schema) {
  schema.type("object");
  schema.json()
      .key("properties")
      .raw(R"({"json":{"type":["object","string","null"]},"regex":{"type":["string","null"]},)"
           R"("choice":{"type":["array","null"],"maxItems":10000,"items":{"type":"string","minLength":1}},)"
           R"("grammar":{"type":["string","null"]},"json_object":{"type":["boolean","null"]},)"
           R"("structural_tag":{"type":"null"},"whitespace_pattern":{"type":"null"}})");
}

Refusal read_form_schema(std::string_view name, Json value, const RequestLimits&, CommonRequest& request) {
  return read_schema(name, std::string(name), value, request);
}

Refusal read_form_regex(std::string_view name, Json value, const RequestLimits&, CommonRequest& request) {
  return read_text(name, std::string(name), value, Notation::kRegex, request);
}

Refusal read_form_grammar(std::string_view name, Json value, const RequestLimits&, CommonRequest& request) {
  return read_text(name, std::string(name), value, Notation::kGrammar, request);
}

Refusal read_form_choice(std::string_view name, Json value, const RequestLimits&, CommonRequest& request) {
  return read_choice(name, std::string(name), value, request);
}

void describe_form_schema(SchemaWriter& schema) {
  schema.json().key("type").raw(schema.nullable() ? R"(["object","string","null"])" : R"(["object","string"])");
}

void describe_form_text(SchemaWriter& schema) {
  schema.type("string");
}

void describe_form_choice(SchemaWriter& schema) {
  schema.type("array");
  schema.json().member("maxItems", kMaxChoices).key("items").raw(R"({"type":"string","minLength":1})");
}

bool may_have_form(std::string_view body) {
  constexpr std::array<std::string_view, 8> kNames = {"\"response_format\"", "\"structured_outputs\"",
                                                      "\"guided_",           "\"json_schema\"",
                                                      "\"regex\"",           "\"ebnf\"",
                                                      "\"grammar\"",         "\"tools\""};
  return std::ranges::any_of(kNames, [body](std::string_view name) { return body.find(name) != body.npos; });
}

}  // namespace millrace::server::openai
