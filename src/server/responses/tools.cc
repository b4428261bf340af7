#include "server/responses/tools.h"

#include <algorithm>
#include <array>

#include "base/log.h"
#include "server/openai/custom_tools.h"
#include "text/unicode.h"

namespace millrace::server::responses {
namespace {

using openai::bad_request;
using openai::FieldError;
using openai::is_absent;
using openai::Json;
using openai::read_bool;
using openai::read_string;
using openai::Tool;
using openai::ToolChoice;
using openai::wrong_type;

constexpr size_t kMaxToolName = 256;
constexpr std::string_view kSeparator = "__";
/// Tools that OpenAI's servers run themselves. Clients send them to every server.
constexpr std::array<std::string_view, 14> kHostedTools = {
    "code_interpreter", "computer",   "computer_use_preview",      "file_search", "image_generation",
    "local_shell",      "mcp",        "programmatic_tool_calling", "shell",       "apply_patch",
    "tool_search",      "web_search", "web_search_preview",        "browser"};

/// Returns whether `type` is a hosted tool, or a dated version of one, e.g. web_search_2025_08_26.
bool is_hosted(std::string_view type) {
  return std::ranges::any_of(kHostedTools, [type](std::string_view known) {
    return type == known || (type.starts_with(known) && type[known.size()] == '_');
  });
}

FieldError read_text_member(const std::string& path, JsonObject object, std::string_view key, std::string& out) {
  const Json value = object[key];
  if (is_absent(value)) return std::nullopt;
  return read_string(fmt::format("{}.{}", path, key), value, out);
}

FieldError read_name(const std::string& path, JsonObject object, std::string& name) {
  if (FieldError field_error = read_text_member(path, object, "name", name)) return field_error;
  const size_t length = text::count_code_points(name);
  if (length > 0 && length <= kMaxToolName) return std::nullopt;
  return bad_request(path + ".name", "{}.name: found {} characters, wanted 1 to {}", path, length, kMaxToolName);
}

/// Replaces a tool in the form of chats, {"type": "function", "function": {…}}, by its inner object. Returns the path.
std::string unwrap(const std::string& path, std::string_view type, JsonObject& tool) {
  const bool is_own = type == "function" || type == "custom";
  if (!is_own || tool["name"].is_string() || !tool[type].get(tool)) return path;
  return fmt::format("{}.{}", path, type);
}

bool describes_object(JsonObject schema) {
  std::string_view type;
  const Json given = schema["type"];
  if (!given.is_missing()) return given.get(type) && type == "object";
  return schema["properties"].is_object();
}

/// Collects the tools of one request: as the model is shown them, and what each one is.
class ToolReader {
 public:
  explicit ToolReader(ResponsesRequest& request) : request_(request), json_(shown_) { json_.begin_array(); }

  FieldError read(const std::string& path, Json value, std::string_view name_space);
  /// Reads the tools of an item that adds some. A name that is there already stays what it is.
  FieldError read_additional(const std::string& path, Json item);
  void finish();

 private:
  FieldError read_function(const std::string& path, JsonObject tool, std::string_view name_space);
  FieldError read_custom(const std::string& path, JsonObject tool, std::string_view name_space);
  FieldError read_namespace(const std::string& path, JsonObject tool);
  FieldError add(Tool tool, ToolOrigin origin, std::string_view description, std::string_view parameters);

  ResponsesRequest& request_;
  bool is_additional_ = false;
  std::string shown_;
  JsonWriter json_;
};

FieldError ToolReader::read(const std::string& path, Json value, std::string_view name_space) {
  JsonObject tool;
  std::string type;
  if (!value.get(tool)) return wrong_type(path, value, "an object");
  if (FieldError field_error = read_text_member(path, tool, "type", type)) return field_error;
  if (type.empty()) type = "function";
  const std::string inner_path = unwrap(path, type, tool);
  if (type == "function") return read_function(inner_path, tool, name_space);
  if (type == "custom") return read_custom(inner_path, tool, name_space);
  if (type == "namespace" && name_space.empty()) return read_namespace(path, tool);
  if (is_hosted(type)) {
    log::debug("a request's tool of type {} is left out: no server of this program hosts it", type);
    return std::nullopt;
  }
  return bad_request(path + ".type", "{}.type: found '{}', wanted function, custom, namespace or a hosted tool", path,
                     type.substr(0, 64));
}

FieldError ToolReader::read_function(const std::string& path, JsonObject object, std::string_view name_space) {
  Tool tool;
  std::string name;
  std::string description;
  if (FieldError field_error = read_name(path, object, name)) return field_error;
  if (FieldError field_error = read_text_member(path, object, "description", description)) return field_error;
  const Json strict = object["strict"];
  if (!is_absent(strict)) {
    if (FieldError field_error = read_bool(path + ".strict", strict, tool.is_strict)) return field_error;
  }
  std::string parameters;
  const Json given = object["parameters"];
  if (!is_absent(given)) {
    JsonObject schema;
    if (!given.get(schema)) return wrong_type(path + ".parameters", given, "an object");
    parameters = to_json(given);
    if (describes_object(schema)) {
      tool.parameters = parameters;
    } else if (tool.is_strict) {
      return bad_request("tools", "{}.parameters: with strict its type has to be 'object'", path);
    }
  }
  tool.path = path;
  return add(std::move(tool), {.name = std::move(name), .name_space = std::string(name_space)}, description,
             parameters);
}

/// Reads a tool whose calls are a text. The model is shown a function of one string.
FieldError ToolReader::read_custom(const std::string& path, JsonObject object, std::string_view name_space) {
  std::string name;
  std::string description;
  if (FieldError field_error = read_name(path, object, name)) return field_error;
  if (FieldError field_error = read_text_member(path, object, "description", description)) return field_error;
  Tool tool;
  tool.path = path;
  if (FieldError field_error = openai::read_custom_format(path, object, tool, description)) return field_error;
  ToolOrigin origin{.name = std::move(name), .name_space = std::string(name_space)};
  return add(std::move(tool), std::move(origin), description, openai::custom_parameters());
}

FieldError ToolReader::read_namespace(const std::string& path, JsonObject object) {
  std::string name;
  if (FieldError field_error = read_name(path, object, name)) return field_error;
  JsonArray members;
  if (!object["tools"].get(members)) return wrong_type(path + ".tools", object["tools"], "an array of tools");
  size_t index = 0;
  for (const Json member : members) {
    if (FieldError field_error = read(fmt::format("{}.tools[{}]", path, index), member, name)) return field_error;
    ++index;
  }
  return std::nullopt;
}

FieldError ToolReader::add(Tool tool, ToolOrigin origin, std::string_view description, std::string_view parameters) {
  tool.name = shown_name(origin.name_space, origin.name);
  if (!request_.origins.emplace(tool.name, std::move(origin)).second) {
    if (is_additional_) return std::nullopt;
    return bad_request("tools", "{}: another tool is called '{}' as well", tool.path, tool.name);
  }
  json_.begin_object().member("type", "function").key("function").begin_object().member("name", tool.name);
  if (!description.empty()) json_.member("description", description);
  if (!parameters.empty()) json_.key("parameters").raw(parameters);
  json_.end_object().end_object();
  request_.conversation.tools.push_back(std::move(tool));
  return std::nullopt;
}

FieldError ToolReader::read_additional(const std::string& path, Json item) {
  is_additional_ = true;
  const Json value = item["tools"];
  JsonArray tools;
  if (is_absent(value)) return std::nullopt;
  if (!value.get(tools)) return wrong_type(path + ".tools", value, "an array of tools");
  size_t index = 0;
  for (const Json tool : tools) {
    if (FieldError field_error = read(fmt::format("{}.tools[{}]", path, index++), tool, {})) return field_error;
  }
  return std::nullopt;
}

void ToolReader::finish() {
  json_.end_array();
  if (!request_.conversation.tools.empty()) request_.conversation.tools_json = std::move(shown_);
}

/// Finds the tool of a name, without its namespace where only one has it; `path` names the choice in errors.
FieldError find_by_name(const std::string& path, JsonObject object, const ResponsesRequest& request,
                        std::string& found) {
  std::string name;
  std::string name_space;
  if (FieldError field_error = read_name(path, object, name)) return field_error;
  if (FieldError field_error = read_text_member(path, object, "namespace", name_space)) return field_error;
  const auto exact = request.origins.find(shown_name(name_space, name));
  if (exact != request.origins.end()) {
    found = exact->first;
    return std::nullopt;
  }
  size_t count = 0;
  for (const auto& [shown, origin] : request.origins) {
    if (!name_space.empty() || origin.name != name) continue;
    found = shown;
    ++count;
  }
  if (count == 1) return std::nullopt;
  if (count == 0) return bad_request("tool_choice", "{}: '{}' is not among the tools", path, name);
  return bad_request("tool_choice", "{}: '{}' is in {} namespaces; wanted its namespace as well", path, name, count);
}

/// Finds the tool that a choice names, which has the type that the choice says.
FieldError find_tool(const std::string& path, Json value, const ResponsesRequest& request, std::string& found) {
  JsonObject object;
  if (!value.get(object)) return wrong_type(path, value, "an object");
  std::string type;
  if (FieldError field_error = read_text_member(path, object, "type", type)) return field_error;
  const std::string inner_path = unwrap(path, type.empty() ? "function" : type, object);
  if (FieldError field_error = find_by_name(inner_path, object, request, found)) return field_error;
  const std::vector<Tool>& tools = request.conversation.tools;
  const auto tool = std::ranges::find(tools, found, &Tool::name);
  const std::string_view wanted = tool != tools.end() && tool->is_custom ? "custom" : "function";
  if (type.empty() || type == wanted) return std::nullopt;
  return bad_request("tool_choice", "{}.type: found '{}', but '{}' is a tool of type {}", path, type.substr(0, 64),
                     found, wanted);
}

/// Lets the model call no other tools than those of {"type": "allowed_tools"}. It is shown all of them still.
FieldError allow_tools(JsonObject object, ResponsesRequest& request) {
  openai::Conversation& conversation = request.conversation;
  std::string mode = "auto";
  if (FieldError field_error = read_text_member("tool_choice", object, "mode", mode)) return field_error;
  if (mode != "auto" && mode != "required") {
    return bad_request("tool_choice", "tool_choice.mode: found '{}', wanted auto or required", mode.substr(0, 64));
  }
  JsonArray allowed;
  if (!object["tools"].get(allowed)) return wrong_type("tool_choice.tools", object["tools"], "an array of tools");
  std::vector<std::string> names;
  size_t index = 0;
  for (const Json item : allowed) {
    std::string_view type;
    (void)item["type"].get(type);
    const std::string path = fmt::format("tool_choice.tools[{}]", index++);
    if (is_hosted(type)) continue;
    if (FieldError field_error = find_tool(path, item, request, names.emplace_back())) return field_error;
  }
  std::erase_if(conversation.tools,
                [&](const Tool& tool) { return std::ranges::find(names, tool.name) == names.end(); });
  conversation.restricts_tools = true;
  if (mode == "required") conversation.tool_choice = ToolChoice::kRequired;
  return std::nullopt;
}

FieldError check_forced(const ResponsesRequest& request) {
  const openai::Conversation& conversation = request.conversation;
  if (!conversation.forces_call() || !conversation.tools.empty()) return std::nullopt;
  return bad_request("tool_choice", "tool_choice: a call is required, but no tool can be called");
}

}  // namespace

std::string shown_name(std::string_view name_space, std::string_view name) {
  if (name_space.empty()) return std::string(name);
  return fmt::format("{}{}{}", name_space, kSeparator, name);
}

FieldError read_tools(Json value, Json input, ResponsesRequest& request) {
  ToolReader reader(request);
  size_t index = 0;
  JsonArray array;
  if (!value.is_missing() && !value.get(array)) return wrong_type("tools", value, "an array of tools");
  for (const Json item : array) {
    if (FieldError field_error = reader.read(fmt::format("tools[{}]", index++), item, {})) return field_error;
  }
  JsonArray items;
  if (!input.get(items)) items = {};
  index = 0;
  for (const Json item : items) {
    const std::string path = fmt::format("input[{}]", index++);
    std::string_view type;
    if (!item["type"].get(type) || type != "additional_tools") continue;
    if (FieldError field_error = reader.read_additional(path, item)) return field_error;
  }
  reader.finish();
  return std::nullopt;
}

FieldError read_tool_choice(Json value, ResponsesRequest& request) {
  openai::Conversation& conversation = request.conversation;
  std::string_view word;
  JsonObject object;
  if (value.get(word)) {
    if (word != "auto" && word != "none" && word != "required") {
      return bad_request("tool_choice", "tool_choice: found '{}', wanted auto, none, required, or an object",
                         word.substr(0, 64));
    }
    if (word == "none") conversation.tool_choice = ToolChoice::kNone;
    if (word == "required") conversation.tool_choice = ToolChoice::kRequired;
    return check_forced(request);
  }
  if (!value.get(object)) return wrong_type("tool_choice", value, "a string or an object");
  std::string type;
  if (FieldError field_error = read_text_member("tool_choice", object, "type", type)) return field_error;
  if (type == "allowed_tools") {
    if (FieldError field_error = allow_tools(object, request)) return field_error;
    return check_forced(request);
  }
  if (type != "function" && type != "custom") {
    return bad_request("tool_choice", "tool_choice.type: found '{}', wanted function, custom or allowed_tools",
                       type.substr(0, 64));
  }
  conversation.tool_choice = ToolChoice::kNamed;
  return find_tool("tool_choice", value, request, conversation.chosen_tool);
}

}  // namespace millrace::server::responses
