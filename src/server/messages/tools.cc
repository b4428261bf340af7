#include "server/messages/tools.h"

#include <algorithm>

#include "base/json.h"
#include "server/messages/content.h"
#include "server/openai/tools.h"
#include "text/unicode.h"

namespace millrace::server::messages {

using openai::bad_request;
using openai::FieldError;
using openai::Json;

namespace {

constexpr size_t kMaxToolName = 256;
constexpr std::string_view kOwnTool = "custom";
constexpr std::string_view kServerSearch = "tool_search_tool_";

FieldError read_name(const std::string& path, Json value, std::string& name) {
  if (FieldError error = openai::read_string(path, value, name)) return error;
  const size_t length = text::count_code_points(name);
  if (length > 0 && length <= kMaxToolName) return std::nullopt;
  return bad_request(path, "{}: found {} characters, wanted 1 to {}", path, length, kMaxToolName);
}

FieldError read_flag(const std::string& path, JsonObject object, std::string_view name, bool& out) {
  const Json value = object[name];
  if (value.is_missing() || value.is_null()) return std::nullopt;
  return openai::read_bool(fmt::format("{}.{}", path, name), value, out);
}

/// Returns the tool as chat templates take it.
std::string to_function(const std::string& name, Json description, std::string_view schema) {
  std::string out;
  JsonWriter json(out);
  json.begin_object().member("type", "function").key("function").begin_object().member("name", name);
  if (std::string_view text; description.get(text)) json.member("description", text);
  json.key("parameters").raw(schema).end_object().end_object();
  return out;
}

}  // namespace

FieldError ToolList::read(std::string_view name, Json value) {
  JsonArray array;
  if (!value.get(array)) return openai::wrong_type(name, value, "an array of tools");
  size_t index = 0;
  for (const Json item : array) {
    if (FieldError error = read_tool(fmt::format("{}[{}]", name, index++), item)) return error;
  }
  return std::nullopt;
}

FieldError ToolList::read_tool(const std::string& path, Json value) {
  JsonObject object;
  if (!value.get(object)) return openai::wrong_type(path, value, "an object");
  std::string_view type = kOwnTool;
  const Json given = object["type"];
  const bool has_type = !given.is_missing() && !given.is_null();
  if (has_type && !given.get(type)) return openai::wrong_type(path + ".type", given, "a string");
  searches_on_server_ = searches_on_server_ || type.starts_with(kServerSearch);
  if (type != kOwnTool) return std::nullopt;
  Entry entry;
  entry.tool.path = path;
  if (FieldError error = read_name(path + ".name", object["name"], entry.tool.name)) return error;
  const Json description = object["description"];
  const bool has_description = !description.is_missing() && !description.is_null();
  if (has_description && !description.is_string()) {
    return openai::wrong_type(path + ".description", description, "a string");
  }
  if (FieldError error = read_flag(path, object, "strict", entry.tool.is_strict)) return error;
  if (FieldError error = read_flag(path, object, "defer_loading", entry.is_deferred)) return error;
  JsonObject schema;
  if (!object["input_schema"].get(schema)) {
    return openai::wrong_type(path + ".input_schema", object["input_schema"], "a JSON schema, as an object");
  }
  const std::string schema_json = to_json(object["input_schema"]);
  const bool is_checked = openai::is_schema_of_object(schema);
  if (is_checked) entry.tool.parameters = schema_json;
  if (!is_checked && entry.tool.is_strict) {
    return bad_request(path, "{}.input_schema: with strict its type has to be 'object'", path);
  }
  entry.json = to_function(entry.tool.name, description, schema_json);
  entries_.push_back(std::move(entry));
  return std::nullopt;
}

void ToolList::store(openai::Conversation& conversation) const {
  // Where nothing of the client's could find a deferred tool, the model sees it at once.
  const bool defers = !searches_on_server_ && !std::ranges::all_of(entries_, &Entry::is_deferred);
  std::string shown;
  for (const Entry& entry : entries_) {
    conversation.tools.push_back(entry.tool);
    if (defers && entry.is_deferred) continue;
    shown += shown.empty() ? '[' : ',';
    shown += entry.json;
  }
  if (!shown.empty()) conversation.tools_json = shown + ']';
}

std::string_view ToolList::referenced_text(std::string_view name) const {
  const auto has_name = [name](const Entry& entry) { return entry.tool.name == name; };
  const auto found = std::ranges::find_if(entries_, has_name);
  return found != entries_.end() && found->is_deferred ? found->json : name;
}

FieldError read_tool_choice(std::string_view name, Json value, openai::ChatRequest& request) {
  Block choice;
  if (FieldError error = read_block(std::string(name), value, choice)) return error;
  bool is_single = false;
  if (FieldError error = read_flag(choice.path, choice.members, "disable_parallel_tool_use", is_single)) return error;
  request.parallel_tool_calls = !is_single;
  openai::Conversation& conversation = request.conversation;
  using openai::ToolChoice;
  if (choice.type == "tool") {
    conversation.tool_choice = ToolChoice::kNamed;
    return read_name(choice.path + ".name", choice.members["name"], conversation.chosen_tool);
  }
  if (choice.type != "auto" && choice.type != "any" && choice.type != "none") {
    return bad_request(name, "{}.type: found '{}', wanted auto, any, tool or none", name, choice.type.substr(0, 64));
  }
  if (choice.type == "any") conversation.tool_choice = ToolChoice::kRequired;
  if (choice.type == "none") conversation.tool_choice = ToolChoice::kNone;
  return std::nullopt;
}

}  // namespace millrace::server::messages
