#include "server/openai/tools.h"

#include "text/unicode.h"

namespace millrace::server::openai {
namespace {

constexpr size_t kMaxToolName = 256;

/// Reads a function's name; `path` names it in errors.
FieldError read_tool_name(const std::string& path, JsonObject function, std::string& name) {
  Json value;
  if (!function["name"].get(value)) return bad_request(path, "{}.name: missing", path);
  if (FieldError field_error = read_string(path + ".name", value, name)) return field_error;
  const size_t length = text::count_code_points(name);
  if (length > 0 && length <= kMaxToolName) return std::nullopt;
  return bad_request(path, "{}.name: found {} characters, wanted 1 to {}", path, length, kMaxToolName);
}

/// Returns the inner object of {"type": "function", "function": {…}}.
FieldError read_function(const std::string& path, Json value, JsonObject& function) {
  JsonObject object;
  if (!value.get(object)) return wrong_type(path, value, "an object");
  std::string_view type = "function";
  if (Json given; object["type"].get(given) && !given.get(type)) {
    return wrong_type(path + ".type", given, "a string");
  }
  if (type != "function") {
    return bad_request(path, "{}.type: found '{}', wanted 'function'", path, type.substr(0, 64));
  }
  if (object["function"].get(function)) return std::nullopt;
  return bad_request(path, "{}.function: missing, or no object", path);
}

FieldError read_parameters(JsonObject function, Tool& tool) {
  Json parameters;
  if (!function["parameters"].get(parameters) || parameters.is_null()) return std::nullopt;
  JsonObject schema;
  const std::string path = tool.path + ".parameters";
  if (!parameters.get(schema)) return wrong_type(path, parameters, "an object");
  if (is_schema_of_object(schema)) {
    tool.parameters = to_json(parameters);
  } else if (tool.is_strict) {
    return bad_request("tools", "{}: with strict its type has to be 'object'", path);
  }
  return std::nullopt;
}

}  // namespace

bool is_schema_of_object(JsonObject schema) {
  std::string_view type;
  if (Json given; schema["type"].get(given)) {
    return given.get(type) && type == "object";
  }
  return schema["properties"].is_object();
}

FieldError read_tool_calls(const std::string& path, Json value, std::vector<MessageToolCall>& calls) {
  JsonArray array;
  if (!value.get(array)) return wrong_type(path, value, "an array");
  calls.clear();
  for (const Json item : array) {
    const std::string item_path = fmt::format("{}[{}]", path, calls.size());
    MessageToolCall& call = calls.emplace_back();
    JsonObject function;
    if (FieldError field_error = read_function(item_path, item, function)) return field_error;
    const std::string function_place = item_path + ".function";
    if (FieldError field_error = read_tool_name(function_place, function, call.name)) return field_error;
    Json member;
    if (function["arguments"].get(member) && !member.is_null()) {
      // What is no text goes to the template as JSON.
      if (!member.is_string()) {
        call.arguments = to_json(member);
      } else if (FieldError field_error = read_string(function_place + ".arguments", member, call.arguments)) {
        return field_error;
      }
    }
    if (!item["id"].get(member) || member.is_null()) continue;
    if (FieldError field_error = read_string(item_path + ".id", member, call.id)) return field_error;
  }
  return std::nullopt;
}

FieldError read_tools(std::string_view name, Json value, const RequestLimits&, Conversation& conversation) {
  JsonArray array;
  if (!value.get(array)) return wrong_type(name, value, "an array of tools");
  conversation.tools.clear();
  for (const Json item : array) {
    const std::string path = fmt::format("tools[{}]", conversation.tools.size());
    JsonObject function;
    if (FieldError field_error = read_function(path, item, function)) return field_error;
    Tool& tool = conversation.tools.emplace_back();
    tool.path = path + ".function";
    if (FieldError field_error = read_tool_name(tool.path, function, tool.name)) return field_error;
    Json strict;
    if (function["strict"].get(strict) && !strict.is_null()) {
      if (FieldError field_error = read_bool(tool.path + ".strict", strict, tool.is_strict)) return field_error;
    }
    if (FieldError field_error = read_parameters(function, tool)) return field_error;
  }
  conversation.tools_json = conversation.tools.empty() ? std::string() : to_json(value);
  return std::nullopt;
}

FieldError read_tool_choice(std::string_view name, Json value, const RequestLimits&, Conversation& conversation) {
  std::string_view word;
  if (value.get(word)) {
    if (word != "auto" && word != "none" && word != "required") {
      return bad_request(name, "{}: found '{}', wanted auto, none, required, or a function", name, word.substr(0, 64));
    }
    conversation.tool_choice = ToolChoice::kAuto;
    if (word == "none") conversation.tool_choice = ToolChoice::kNone;
    if (word == "required") conversation.tool_choice = ToolChoice::kRequired;
    return std::nullopt;
  }
  conversation.tool_choice = ToolChoice::kNamed;
  JsonObject function;
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
