#include "server/openai/tools.h"

#include "text/unicode.h"

namespace millrace::server::openai {
namespace {

constexpr size_t kMaxToolName = 256;

/// A function's name, which stands in `place`.
Refusal read_tool_name(const std::string& place, simdjson::dom::object function, std::string& name) {
  Json value;
  if (function["name"].get(value) != simdjson::SUCCESS) return bad_request(place, "{}.name: missing", place);
  if (Refusal refusal = read_string(place + ".name", value, name)) return refusal;
  const size_t length = text::count_code_points(name);
  if (length > 0 && length <= kMaxToolName) return std::nullopt;
  return bad_request(place, "{}.name: found {} characters, wanted 1 to {}", place, length, kMaxToolName);
}

/// {"type": "function", "function": {…}}: the inner object.
Refusal read_function(const std::string& place, Json value, simdjson::dom::object& function) {
  simdjson::dom::object object;
  if (value.get_object().get(object) != simdjson::SUCCESS) return wrong_type(place, value, "an object");
  std::string_view type = "function";
  if (Json given; object["type"].get(given) == simdjson::SUCCESS && given.get_string().get(type) != simdjson::SUCCESS) {
    return wrong_type(place + ".type", given, "a string");
  }
  if (type != "function") {
    return bad_request(place, "{}.type: found '{}', wanted 'function'", place, type.substr(0, 64));
  }
  if (object["function"].get_object().get(function) == simdjson::SUCCESS) return std::nullopt;
  return bad_request(place, "{}.function: missing, or no object", place);
}

bool is_schema_of_object(simdjson::dom::object schema) {
  std::string_view type;
  if (Json given; schema["type"].get(given) == simdjson::SUCCESS) {
    return given.get_string().get(type) == simdjson::SUCCESS && type == "object";
  }
  return schema["properties"].is_object();
}

Refusal read_parameters(simdjson::dom::object function, Tool& tool) {
  Json parameters;
  if (function["parameters"].get(parameters) != simdjson::SUCCESS || parameters.is_null()) return std::nullopt;
  simdjson::dom::object schema;
  const std::string place = tool.place + ".parameters";
  if (parameters.get_object().get(schema) != simdjson::SUCCESS) return wrong_type(place, parameters, "an object");
  if (is_schema_of_object(schema)) {
    tool.parameters = simdjson::minify(parameters);
  } else if (tool.is_strict) {
    return bad_request("tools", "{}: with strict its type has to be 'object'", place);
  }
  return std::nullopt;
}

}  // namespace

Refusal read_tool_calls(const std::string& place, Json value, std::vector<MessageToolCall>& calls) {
  simdjson::dom::array array;
  if (value.get_array().get(array) != simdjson::SUCCESS) return wrong_type(place, value, "an array");
  calls.clear();
  for (const Json item : array) {
    const std::string item_place = fmt::format("{}[{}]", place, calls.size());
    MessageToolCall& call = calls.emplace_back();
    simdjson::dom::object function;
    if (Refusal refusal = read_function(item_place, item, function)) return refusal;
    const std::string function_place = item_place + ".function";
    if (Refusal refusal = read_tool_name(function_place, function, call.name)) return refusal;
    Json member;
    if (function["arguments"].get(member) == simdjson::SUCCESS && !member.is_null()) {
      if (member.is_object()) {
        call.arguments = simdjson::minify(member);
      } else if (Refusal refusal = read_string(function_place + ".arguments", member, call.arguments)) {
        return refusal;
      }
    }
    if (item["id"].get(member) != simdjson::SUCCESS || member.is_null()) continue;
    if (Refusal refusal = read_string(item_place + ".id", member, call.id)) return refusal;
  }
  return std::nullopt;
}

Refusal read_tools(std::string_view name, Json value, const RequestLimits&, Conversation& conversation) {
  simdjson::dom::array array;
  if (value.get_array().get(array) != simdjson::SUCCESS) return wrong_type(name, value, "an array of tools");
  conversation.tools.clear();
  for (const Json item : array) {
    const std::string place = fmt::format("tools[{}]", conversation.tools.size());
    simdjson::dom::object function;
    if (Refusal refusal = read_function(place, item, function)) return refusal;
    Tool& tool = conversation.tools.emplace_back();
    tool.place = place + ".function";
    if (Refusal refusal = read_tool_name(tool.place, function, tool.name)) return refusal;
    Json strict;
    if (function["strict"].get(strict) == simdjson::SUCCESS && !strict.is_null()) {
      if (Refusal refusal = read_bool(tool.place + ".strict", strict, tool.is_strict)) return refusal;
    }
    if (Refusal refusal = read_parameters(function, tool)) return refusal;
  }
  conversation.tools_json = conversation.tools.empty() ? std::string() : simdjson::minify(value);
  return std::nullopt;
}

Refusal read_tool_choice(std::string_view name, Json value, const RequestLimits&, Conversation& conversation) {
  std::string_view word;
  if (value.get_string().get(word) == simdjson::SUCCESS) {
    if (word != "auto" && word != "none" && word != "required") {
      return bad_request(name, "{}: found '{}', wanted auto, none, required, or a function", name, word.substr(0, 64));
    }
    conversation.tool_choice = ToolChoice::kAuto;
    if (word == "none") conversation.tool_choice = ToolChoice::kNone;
    if (word == "required") conversation.tool_choice = ToolChoice::kRequired;
    return std::nullopt;
  }
  conversation.tool_choice = ToolChoice::kNamed;
  simdjson::dom::object function;
  if (Refusal refusal = read_function(std::string(name), value, function)) return refusal;
  return read_tool_name("tool_choice.function", function, conversation.chosen_tool);
}

void describe_tools(SchemaWriter& schema) {
  schema.type("array");
  schema.json().key("items").raw(
      R"({"type":"object","required":["function"],"properties":{"type":{"const":"function"},)"
      R"("function":{"type":"object","required":["name"],"properties":{)"
      R"("name":{"type":"string","minLength":1,"maxLength":256},"parameters":{"type":["object","null"]},)"
      R"("strict":{"type":["boolean","null"],"description":"Calls of it are held to its parameters"}}}}})");
}

void describe_tool_choice(SchemaWriter& schema) {
  schema.json().key("anyOf").raw(
      R"([{"enum":["auto","none","required",null]},)"
      R"({"type":"object","required":["function"],"properties":{"type":{"const":"function"},)"
      R"("function":{"type":"object","required":["name"],"properties":{)"
      R"("name":{"type":"string","minLength":1,"maxLength":256}}}}}])");
}

}  // namespace millrace::server::openai
