#include "server/openai/tools.h"

#include <algorithm>
#include <array>

#include "server/openai/custom_tools.h"
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

/// An object like {"type": "function", "function": {…}} or {"type": "custom", "custom": {…}}, or with the inner members
/// next to the type, as in /v1/responses.
struct Typed {
  JsonObject inner;
  std::string path;  ///< of the inner object
  bool is_custom = false;
  bool is_canonical = true;  ///< it is written as OpenAI's chats have it
  std::string_view schema_name = "parameters";
};

/// Returns whether a tool is one of /v1/messages: its name and its input_schema stand next to the type, if there is
/// one.
bool is_tool_of_messages(Json value) {
  JsonObject object;
  if (!value.get(object) || !object["name"].is_string() || !object["input_schema"].is_object()) return false;
  std::string_view type = "custom";
  const Json given = object["type"];
  const bool is_own = is_absent(given) || (given.get(type) && (type == "custom" || type == "function"));
  return is_own && is_absent(object["function"]) && is_absent(object["custom"]) && is_absent(object["parameters"]);
}

FieldError read_typed(const std::string& path, Json value, Typed& out) {
  JsonObject object;
  if (!value.get(object)) return wrong_type(path, value, "an object");
  std::string_view type = "function";
  const Json given = object["type"];
  const bool has_type = !is_absent(given);
  if (has_type && !given.get(type)) return wrong_type(path + ".type", given, "a string");
  if (type != "function" && type != "custom") {
    return bad_request(path, "{}.type: found '{}', wanted 'function' or 'custom'", path, type.substr(0, 64));
  }
  out.is_custom = type == "custom";
  out.path = fmt::format("{}.{}", path, type);
  out.is_canonical = has_type;
  const Json inner = object[type];
  if (inner.get(out.inner)) return std::nullopt;
  const bool is_flat = is_absent(inner) && object["name"].is_string() && is_absent(object["input_schema"]);
  if (!is_flat) return bad_request(path, "{}: missing, or no object", out.path);
  out.inner = object;
  out.path = path;
  out.is_canonical = false;
  return std::nullopt;
}

/// Appends a function as chat templates know it.
void show_function(const Typed& typed, Json item, std::string& shown) {
  if (typed.is_canonical) {
    append_json(shown, item);
    return;
  }
  const bool is_of_messages = typed.schema_name != "parameters";
  JsonWriter json(shown);
  json.begin_object().member("type", "function").key("function").begin_object();
  for (const auto& [key, value] : typed.inner) {
    if (key == "type" || key == "function") continue;
    if (is_of_messages && key != "name" && key != "description" && key != typed.schema_name) continue;
    json.key(key == typed.schema_name ? "parameters" : key).raw(to_json(value));
  }
  json.end_object().end_object();
}

/// Reads {"type": "allowed_tools", "allowed_tools": {"mode": …, "tools": […]}}.
FieldError read_allowed_tools(JsonObject choice, Conversation& conversation) {
  JsonObject allowed;
  JsonArray tools;
  std::string_view mode;
  if (!choice["allowed_tools"].get(allowed)) {
    return wrong_type("tool_choice.allowed_tools", choice["allowed_tools"], "an object");
  }
  if (!allowed["mode"].get(mode) || (mode != "auto" && mode != "required")) {
    return bad_request("tool_choice", "tool_choice.allowed_tools.mode: found {}, wanted auto or required",
                       describe(allowed["mode"]));
  }
  if (!allowed["tools"].get(tools)) {
    return wrong_type("tool_choice.allowed_tools.tools", allowed["tools"], "an array of tools");
  }
  conversation.tool_choice = mode == "required" ? ToolChoice::kRequired : ToolChoice::kAuto;
  if (tools.empty()) {
    return bad_request("tool_choice",
                       "tool_choice.allowed_tools.tools: empty, wanted the name of a tool; none forbids calls");
  }
  std::vector<ToolName>& names = conversation.allowed_tools.emplace();
  for (const Json item : tools) {
    Typed tool;
    const std::string path = fmt::format("tool_choice.allowed_tools.tools[{}]", names.size());
    if (FieldError field_error = read_typed(path, item, tool)) return field_error;
    ToolName& name = names.emplace_back();
    name.is_custom = tool.is_custom;
    if (FieldError field_error = read_tool_name(tool.path, tool.inner, name.name)) return field_error;
  }
  return std::nullopt;
}

constexpr std::array<std::string_view, 4> kChoicesOfMessages = {"auto", "any", "none", "tool"};

/// Reads a choice as /v1/messages has it: {"type": "auto" | "any" | "none"}, or {"type": "tool", "name": …}.
FieldError read_choice_of_messages(JsonObject choice, std::string_view type, Conversation& conversation) {
  conversation.chooses_custom = false;
  if (const Json flag = choice["disable_parallel_tool_use"]; !is_absent(flag)) {
    FieldError field_error = read_bool("tool_choice.disable_parallel_tool_use", flag, conversation.allows_one_call);
    if (field_error) return field_error;
  }
  conversation.tool_choice = type == "any"    ? ToolChoice::kRequired
                             : type == "none" ? ToolChoice::kNone
                             : type == "tool" ? ToolChoice::kNamed
                                              : ToolChoice::kAuto;
  return type == "tool" ? read_tool_name("tool_choice", choice, conversation.chosen_tool) : std::nullopt;
}

/// Refuses a function and a custom tool of one name, whose calls nothing distinguishes.
FieldError check_name_of_last(const std::vector<Tool>& tools) {
  const Tool& last = tools.back();
  const bool is_taken = std::ranges::any_of(
      tools, [&](const Tool& tool) { return tool.name == last.name && tool.is_custom != last.is_custom; });
  if (!is_taken) return std::nullopt;
  return bad_request("tools", "{}: a {} is called '{}' as well", last.path, last.is_custom ? "function" : "custom tool",
                     last.name);
}

/// Reads a custom tool, and appends the function that the model is shown in its place.
FieldError read_custom(JsonObject custom, Tool& tool, std::string& shown) {
  std::string description;
  if (const Json given = custom["description"]; !is_absent(given)) {
    if (FieldError field_error = read_string(tool.path + ".description", given, description)) return field_error;
  }
  if (FieldError field_error = read_custom_format(tool.path, custom, tool, description)) return field_error;
  JsonWriter json(shown);
  json.begin_object().member("type", "function").key("function").begin_object().member("name", tool.name);
  if (!description.empty()) json.member("description", description);
  json.key("parameters").raw(custom_parameters()).end_object().end_object();
  return std::nullopt;
}

FieldError read_parameters(JsonObject function, std::string_view name, Tool& tool) {
  Json parameters;
  if (!function[name].get(parameters) || parameters.is_null()) return std::nullopt;
  JsonObject schema;
  const std::string path = fmt::format("{}.{}", tool.path, name);
  if (!parameters.get(schema)) return wrong_type(path, parameters, "an object");
  if (is_schema_of_object(schema)) {
    tool.parameters = to_json(parameters);
  } else if (tool.is_strict) {
    return bad_request("tools", "{}: with strict its type has to be 'object'", path);
  }
  return std::nullopt;
}

FieldError read_function(JsonObject function, std::string_view schema_name, Tool& tool) {
  if (const Json strict = function["strict"]; !is_absent(strict)) {
    if (FieldError field_error = read_bool(tool.path + ".strict", strict, tool.is_strict)) return field_error;
  }
  return read_parameters(function, schema_name, tool);
}

/// Describes what read_typed takes, each inner object with a name and further members.
void describe_typed(JsonWriter& json, std::string_view function, std::string_view custom,
                    std::string_view required_of_custom = {}) {
  constexpr std::string_view kName = R"("name":{"type":"string","minLength":1,"maxLength":256})";
  constexpr std::string_view kType = R"("type":{"enum":["function",null]})";
  constexpr std::string_view kFlat = R"("input_schema":{"type":"null"})";
  const std::string of_function = fmt::format("{}{}", kName, function);
  const std::string of_custom = fmt::format("{}{}", kName, custom);
  json.raw(fmt::format(R"({{"type":"object","required":["function"],"properties":{{{},"function":{{"type":"object",)"
                       R"("required":["name"],"properties":{{{}}}}}}}}})",
                       kType, of_function));
  json.raw(fmt::format(R"({{"type":"object","required":["name"],"properties":{{{},"function":{{"type":"null"}},{},)"
                       R"({}}}}})",
                       kType, kFlat, of_function));
  json.raw(fmt::format(R"({{"type":"object","required":["type","custom"],"properties":{{"type":{{"const":"custom"}},)"
                       R"("custom":{{"type":"object","required":["name"{}],"properties":{{{}}}}}}}}})",
                       required_of_custom, of_custom));
  json.raw(fmt::format(R"({{"type":"object","required":["type","name"{}],"properties":{{"type":{{"const":"custom"}},)"
                       R"("custom":{{"type":"null"}},{},{}}}}})",
                       required_of_custom, kFlat, of_custom));
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
    Typed typed;
    if (FieldError field_error = read_typed(item_path, item, typed)) return field_error;
    if (FieldError field_error = read_tool_name(typed.path, typed.inner, call.name)) return field_error;
    Json member;
    if (typed.is_custom) {
      std::string input;
      if (FieldError field_error = read_string(typed.path + ".input", typed.inner["input"], input)) return field_error;
      call.arguments = custom_arguments(input);
    } else if (typed.inner["arguments"].get(member) && !member.is_null()) {
      // What is no text goes to the template as JSON.
      if (!member.is_string()) {
        call.arguments = to_json(member);
      } else if (FieldError field_error = read_string(typed.path + ".arguments", member, call.arguments)) {
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
  std::string shown;
  for (const Json item : array) {
    const std::string path = fmt::format("tools[{}]", conversation.tools.size());
    Typed typed;
    if (is_tool_of_messages(item)) {
      typed = {.path = path, .is_canonical = false, .schema_name = "input_schema"};
      (void)item.get(typed.inner);
    } else if (FieldError field_error = read_typed(path, item, typed)) {
      return field_error;
    }
    Tool& tool = conversation.tools.emplace_back();
    tool.path = std::move(typed.path);
    if (FieldError field_error = read_tool_name(tool.path, typed.inner, tool.name)) return field_error;
    tool.is_custom = typed.is_custom;
    if (FieldError field_error = check_name_of_last(conversation.tools)) return field_error;
    shown += shown.empty() ? '[' : ',';
    const FieldError field_error =
        tool.is_custom ? read_custom(typed.inner, tool, shown) : read_function(typed.inner, typed.schema_name, tool);
    if (field_error) return field_error;
    if (!tool.is_custom) show_function(typed, item, shown);
  }
  if (!shown.empty()) shown += ']';
  conversation.tools_json = std::move(shown);
  return std::nullopt;
}

FieldError read_tool_choice(std::string_view name, Json value, const RequestLimits&, Conversation& conversation) {
  std::string_view word;
  conversation.allowed_tools.reset();
  conversation.allows_one_call = false;
  if (value.get(word)) {
    if (word != "auto" && word != "none" && word != "required") {
      return bad_request(name, "{}: found '{}', wanted auto, none, required, or a function", name, word.substr(0, 64));
    }
    conversation.tool_choice = ToolChoice::kAuto;
    if (word == "none") conversation.tool_choice = ToolChoice::kNone;
    if (word == "required") conversation.tool_choice = ToolChoice::kRequired;
    return std::nullopt;
  }
  JsonObject object;
  if (value.get(object) && object["type"].get(word)) {
    if (word == "allowed_tools") return read_allowed_tools(object, conversation);
    if (std::ranges::find(kChoicesOfMessages, word) != kChoicesOfMessages.end()) {
      return read_choice_of_messages(object, word, conversation);
    }
  }
  conversation.tool_choice = ToolChoice::kNamed;
  Typed typed;
  if (FieldError field_error = read_typed(std::string(name), value, typed)) return field_error;
  conversation.chooses_custom = typed.is_custom;
  return read_tool_name(typed.path, typed.inner, conversation.chosen_tool);
}

FieldError check_chosen(const Conversation& conversation, std::string_view field, const ToolName& chosen) {
  const auto tool = std::ranges::find(conversation.tools, chosen.name, &Tool::name);
  if (tool == conversation.tools.end()) {
    return bad_request("tool_choice", "{}: '{}' is not among the tools", field, chosen.name);
  }
  if (tool->is_custom == chosen.is_custom) return std::nullopt;
  return bad_request("tool_choice", "{}: found '{}' as a {}, but it is a {}", field, chosen.name,
                     chosen.is_custom ? "custom tool" : "function", tool->is_custom ? "custom tool" : "function");
}

FieldError restrict_tools(Conversation& conversation) {
  if (!conversation.allowed_tools) return std::nullopt;
  const std::vector<ToolName>& names = *conversation.allowed_tools;
  for (const ToolName& name : names) {
    if (FieldError field_error = check_chosen(conversation, "tool_choice.allowed_tools", name)) return field_error;
  }
  std::erase_if(conversation.tools,
                [&](const Tool& tool) { return std::ranges::find(names, tool.name, &ToolName::name) == names.end(); });
  conversation.restricts_tools = true;
  return std::nullopt;
}

void describe_tools(SchemaWriter& schema) {
  constexpr std::string_view kFunction =
      R"(,"parameters":{"type":["object","null"]},)"
      R"("strict":{"type":["boolean","null"],"description":"Calls of it are held to its parameters"})";
  constexpr std::string_view kCustom =
      R"(,"description":{"type":["string","null"]},)"
      R"("format":{"anyOf":[{"type":"null"},{"type":"object","required":["type"],"properties":{)"
      R"("type":{"const":"text"}}},{"type":"object","required":["type","grammar"],"properties":{)"
      R"("type":{"const":"grammar"},"grammar":{"type":"object","required":["syntax","definition"],"properties":{)"
      R"("syntax":{"enum":["lark","regex"]},"definition":{"type":"string"}}}}},)"
      R"({"type":"object","required":["type","syntax","definition"],"properties":{"type":{"const":"grammar"},)"
      R"("grammar":{"type":"null"},"syntax":{"enum":["lark","regex"]},"definition":{"type":"string"}}}]})";
  schema.type("array");
  schema.json().key("items").begin_object().key("anyOf").begin_array();
  describe_typed(schema.json(), kFunction, kCustom);
  schema.json().raw(R"({"description":"As in /v1/messages","type":"object","required":["name","input_schema"],)"
                    R"("properties":{"type":{"enum":["custom","function",null]},"function":{"type":"null"},)"
                    R"("custom":{"type":"null"},"parameters":{"type":"null"},)"
                    R"("name":{"type":"string","minLength":1,"maxLength":256},"input_schema":{"type":"object"},)"
                    R"("strict":{"type":["boolean","null"]}}})");
  schema.json().end_array().end_object();
}

void describe_tool_choice(SchemaWriter& schema) {
  JsonWriter& json = schema.json();
  json.key("anyOf").begin_array().raw(R"({"enum":["auto","none","required",null]})");
  describe_typed(json, {}, {});
  json.raw(R"({"description":"As in /v1/messages","type":"object","required":["type"],"properties":{)"
           R"("type":{"enum":["auto","any","none"]},"disable_parallel_tool_use":{"type":["boolean","null"]}}})");
  json.raw(R"({"description":"As in /v1/messages","type":"object","required":["type","name"],"properties":{)"
           R"("type":{"const":"tool"},"name":{"type":"string","minLength":1,"maxLength":256},)"
           R"("disable_parallel_tool_use":{"type":["boolean","null"]}}})");
  json.raw(R"({"type":"object","required":["type","allowed_tools"],"properties":{"type":{"const":"allowed_tools"},)"
           R"("allowed_tools":{"type":"object","required":["mode","tools"],"properties":{)"
           R"("mode":{"enum":["auto","required"]},"tools":{"type":"array","minItems":1,)"
           R"("description":"Of the tools","items":{"type":"object"}}}}}})");
  json.end_array();
}

void describe_tool_calls(JsonWriter& json) {
  json.begin_object().member("description", "Of an assistant").key("type").raw(R"(["array","null"])");
  json.key("items").begin_object().member("type", "object");
  json.key("properties").raw(R"({"id":{"type":["string","null"]}})").key("anyOf").begin_array();
  describe_typed(json, R"(,"arguments":{})", R"(,"input":{"type":"string"})", R"(,"input")");
  json.end_array().end_object().end_object();
}

}  // namespace millrace::server::openai
