#include "server/openai/tools.h"

#include "text/unicode.h"

namespace millrace::server::openai {
namespace {

constexpr size_t kMaxToolName = 256;

/// A function's name, which stands in `path`.
FieldError read_tool_name(const std::string& path, simdjson::dom::object function, std::string& name) {
  Json value;
  if (function["name"].get(value) != simdjson::SUCCESS) return bad_request(path, "{}.name: missing", path);
  if (FieldError field_error = read_string(path + ".name", value, name)) return field_error;
  const size_t length = text::count_code_points(name);
  if (length > 0 && length <= kMaxToolName) return std::nullopt;
  return bad_request(path, "{}.name: found {} characters, wanted 1 to {}", path, length, kMaxToolName);
}

/// {"type": "function", "function": {…}}: the inner object.
FieldError read_function(const std::string& path, Json value, simdjson::dom::object& function) {
  simdjson::dom::object object;
  if (value.get_object().get(object) != simdjson::SUCCESS) return wrong_type(path, value, "an object");
  std::string_view type = "function";
  if (Json given; object["type"].get(given) == simdjson::SUCCESS && given.get_string().get(type) != simdjson::SUCCESS) {
    return wrong_type(path + ".type", given, "a string");
  }
  if (type != "function") {
    return bad_request(path, "{}.type: found '{}', wanted 'function'", path, type.substr(0, 64));
  }
  if (object["function"].get_object().get(function) == simdjson::SUCCESS) return std::nullopt;
  return bad_request(path, "{}.function: missing, or no object", path);
}

bool is_schema_of_object(simdjson::dom::object schema) {
  std::string_view type;
  if (Json given; schema["type"].get(given) == simdjson::SUCCESS) {
    return given.get_string().get(type) == simdjson::SUCCESS && type == "object";
  }
  return schema["properties"].is_object();
}

FieldError read_parameters(simdjson::dom::object function, Tool& tool) {
  Json parameters;
  if (function["parameters"].get(parameters) != simdjson::SUCCESS || parameters.is_null()) return std::nullopt;
  simdjson::dom::object schema;
  const std::string path = tool.path + ".parameters";
  if (parameters.get_object().get(schema) != simdjson::SUCCESS) return wrong_type(path, parameters, "an object");
  if (is_schema_of_object(schema)) {
    tool.parameters = simdjson::minify(parameters);
  } else if (tool.is_strict) {
    return bad_request("tools", "{}: with strict its type has to be 'object'", path);
  }
  return std::nullopt;
}

}  // namespace

FieldError read_tool_calls(const std::string& path, Json value, std::vector<MessageToolCall>& calls) {
  simdjson::dom::array array;
  if (value.get_array().get(array) != simdjson::SUCCESS) return wrong_type(path, value, "an array");
  calls.clear();
  for (const Json item : array) {
    const std::string item_path = fmt::format("{}[{}]", path, calls.size());
    MessageToolCall& call = calls.emplace_back();
    simdjson::dom::object function;
    if (FieldError field_error = read_function(item_path, item, function)) return field_error;
    const std::string function_place = item_path + ".function";
    if (FieldError field_error = read_tool_name(function_place, function, call.name)) return field_error;
    Json member;
    if (function["arguments"].get(member) == simdjson::SUCCESS && !member.is_null()) {
      if (member.is_object()) {
        call.arguments = simdjson::minify(member);
      } else if (FieldError field_error = read_string(function_place + ".arguments", member, call.arguments)) {
        return field_error;
      }
    }
    if (item["id"].get(member) != simdjson::SUCCESS || member.is_null()) continue;
    if (FieldError field_error = read_string(item_path + ".id", member, call.id)) return field_error;
  }
  return std::nullopt;
}

FieldError read_tools(std::string_view name, Json value, const RequestLimits&, Conversation& conversation) {
  simdjson::dom::array array;
  if (value.get_array().get(array) != simdjson::SUCCESS) return wrong_type(name, value, "an array of tools");
  conversation.tools.clear();
  for (const Json item : array) {
    const std::string path = fmt::format("tools[{}]", conversation.tools.size());
    simdjson::dom::object function;
    if (FieldError field_error = read_function(path, item, function)) return field_error;
    Tool& tool = conversation.tools.emplace_back();
    tool.path = path + ".function";
    if (FieldError field_error = read_tool_name(tool.path, function, tool.name)) return field_error;
    Json strict;
    if (function["strict"].get(strict) == simdjson::SUCCESS && !strict.is_null()) {
      if (FieldError field_error = read_bool(tool.path + ".strict", strict, tool.is_strict)) return field_error;
    }
    if (FieldError field_error = read_parameters(function, tool)) return field_error;
  }
  conversation.tools_json = conversation.tools.empty() ? std::string() : simdjson::minify(value);
  return std::nullopt;
}

FieldError read_tool_choice(std::string_view name, Json value, const RequestLimits&, Conversation& conversation) {
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
  if (FieldError field_error = read_function(std::string(name), value, function)) return field_error;
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
