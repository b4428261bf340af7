#include "server/responses/input_items.h"

#include <algorithm>
#include <array>

#include "base/log.h"
#include "server/openai/custom_tools.h"
#include "server/openai/media.h"
#include "server/responses/compaction.h"
#include "server/responses/tools.h"
#include "text/unicode.h"

namespace millrace::server::responses {
namespace {

using openai::bad_request;
using openai::ChatMessage;
using openai::FieldError;
using openai::is_absent;
using openai::Json;
using openai::Medium;
using openai::read_string;
using openai::wrong_type;

constexpr size_t kMaxName = 256;
/// The beginning of what OpenAI's servers encrypt.
constexpr std::string_view kOpenAiSeal = "gAAAAA";
void join(std::string& text, std::string_view more, std::string_view separator) {
  if (!text.empty() && !more.empty()) text += separator;
  text += more;
}

FieldError read_required(const std::string& path, JsonObject item, std::string_view key, std::string& out) {
  const Json value = item[key];
  if (is_absent(value)) return bad_request(fmt::format("{}.{}", path, key), "{}.{}: missing", path, key);
  return read_string(fmt::format("{}.{}", path, key), value, out);
}

/// Reads one content part, whose text has the name "text" or "refusal". A null `medium` refuses everything but texts.
FieldError read_part(const std::string& path, Json part, std::string& text, std::optional<Medium>* medium) {
  constexpr std::array<std::string_view, 6> kTextParts = {"input_text",   "output_text",    "text",
                                                          "summary_text", "reasoning_text", "refusal"};
  JsonObject object;
  std::string_view type;
  if (!part.get(object)) return wrong_type(path, part, "an object");
  if (!object["type"].get(type)) return bad_request(path, "{}: a content part has no type", path);
  if (const std::string_view word = openai::medium_of_type(type); medium != nullptr && !word.empty()) {
    text = openai::replace_medium(word, path, *medium);
    return std::nullopt;
  }
  // Codex names the parts so in which it hands one agent's words to another. It encrypts nothing itself.
  std::string_view sealed;
  if (type == "encrypted_content" && object[type].get(sealed) && !sealed.starts_with(kOpenAiSeal)) {
    text = sealed;
    return std::nullopt;
  }
  if (std::ranges::find(kTextParts, type) == kTextParts.end()) {
    if (medium != nullptr) {
      text = openai::replace_medium(type.substr(0, 64), path, *medium);
      return std::nullopt;
    }
    return bad_request(path, "{}: content parts of type '{}' are not supported, only texts are", path,
                       type.substr(0, 64));
  }
  return read_required(path, object, type == "refusal" ? "refusal" : "text", text);
}

/// Reads a text, or an array of text parts, which `separator` joins.
FieldError read_parts(const std::string& path, Json value, std::string_view separator, std::string& content,
                      std::optional<Medium>* medium) {
  JsonArray parts;
  if (value.is_string()) return read_string(path, value, content);
  if (!value.get(parts)) return wrong_type(path, value, "a string or an array of content parts");
  size_t index = 0;
  for (const Json part : parts) {
    std::string text;
    if (FieldError field_error = read_part(fmt::format("{}[{}]", path, index), part, text, medium)) return field_error;
    if (index++ > 0) content += separator;
    content += text;
  }
  return std::nullopt;
}

bool is_unfinished(JsonObject item) {
  std::string_view status;
  return item["status"].get(status) && (status == "in_progress" || status == "incomplete");
}

/// Returns the prefix of an id that the item would have.
std::string_view id_prefix_of(std::string_view type) {
  if (type == "function_call") return "fc";
  if (type == "function_call_output") return "fco";
  if (type == "custom_tool_call") return "ctc";
  if (type == "custom_tool_call_output") return "ctco";
  if (type == "compaction" || type == "compaction_summary") return "cmp";
  if (type == "reasoning") return "rs";
  return "msg";
}

}  // namespace

ChatMessage& InputConverter::assistant() {
  if (!is_within_assistant_) {
    ChatMessage& message = conversation_.messages.emplace_back();
    message.role = "assistant";
    // A template that joins contents fails at null.
    message.content_kind = ChatMessage::Content::kText;
    is_within_assistant_ = true;
  }
  return conversation_.messages.back();
}

FieldError InputConverter::add(const std::string& path, Json item) {
  JsonObject object;
  std::string_view type;
  if (!item.get(object)) return wrong_type(path, item, "an object");
  const Json given = object["type"];
  if (!is_absent(given) && !given.get(type)) return wrong_type(path + ".type", given, "a string");
  conversation_.continue_final_message = false;
  conversation_.add_generation_prompt = true;
  if (type.empty() || type == "message") return add_message(path, object);
  if (type == "reasoning") return add_reasoning(path, object);
  if (type == "function_call") return add_call(path, object, false);
  if (type == "custom_tool_call") return add_call(path, object, true);
  if (type == "function_call_output" || type == "custom_tool_call_output") return add_call_output(path, object);
  if (type == "agent_message") return add_agent_message(path, object);
  if (type == "compaction" || type == "compaction_summary") return add_summary(path, object);
  // Clients know new types before servers do, and send such an item with each further request.
  log::debug("{} of a request is left out: items of type {} say nothing to the model", path, type.substr(0, 64));
  return std::nullopt;
}

FieldError InputConverter::add_message(const std::string& path, JsonObject item) {
  std::string role;
  if (FieldError field_error = read_required(path, item, "role", role)) return field_error;
  const bool is_system = role == "system" || role == "developer";
  if (!is_system && role != "user" && role != "assistant") {
    return bad_request(path + ".role", "{}.role: found '{}', wanted user, assistant, system or developer", path,
                       role.substr(0, 64));
  }
  const Json content = item["content"];
  const bool is_missing = is_absent(content);
  if (is_missing && role != "assistant") return bad_request(path + ".content", "{}.content: missing", path);
  std::string text;
  std::optional<Medium> medium;
  const std::string_view separator = role == "assistant" ? "" : "\n";
  FieldError content_error;
  if (!is_missing) content_error = read_parts(path + ".content", content, separator, text, &medium);
  if (content_error) return content_error;
  if (role == "assistant") {
    ChatMessage& message = assistant();
    join(message.content, text, "\n");
    if (!message.medium) message.medium = std::move(medium);
    conversation_.continue_final_message = is_unfinished(item);
    conversation_.add_generation_prompt = !conversation_.continue_final_message;
    return std::nullopt;
  }
  is_within_assistant_ = false;
  ChatMessage& message = conversation_.messages.emplace_back();
  message.role = is_system ? "system" : role;
  message.content_kind = ChatMessage::Content::kText;
  message.content = std::move(text);
  message.medium = std::move(medium);
  return std::nullopt;
}

FieldError InputConverter::add_agent_message(const std::string& path, JsonObject item) {
  std::string text;
  std::optional<Medium> medium;
  if (const Json content = item["content"]; !is_absent(content)) {
    if (FieldError field_error = read_parts(path + ".content", content, "\n", text, &medium)) return field_error;
  }
  if (text.empty()) return std::nullopt;
  is_within_assistant_ = false;
  ChatMessage& message = conversation_.messages.emplace_back();
  message.role = "user";
  message.content_kind = ChatMessage::Content::kText;
  message.content = std::move(text);
  return std::nullopt;
}

FieldError InputConverter::add_summary(const std::string& path, JsonObject item) {
  std::string_view sealed;
  std::optional<std::string> text;
  if (item["encrypted_content"].get(sealed)) text = read_summary(sealed);
  if (!text) {
    log::debug("{} is left out: another server encrypted it", path);
    return std::nullopt;
  }
  is_within_assistant_ = false;
  // The summary stands for calls and outputs. Images before it have been answered, too.
  std::erase_if(conversation_.messages,
                [](const ChatMessage& earlier) { return earlier.role == "assistant" || earlier.role == "tool"; });
  for (ChatMessage& earlier : conversation_.messages) earlier.medium.reset();
  ChatMessage& message = conversation_.messages.emplace_back();
  message.role = "user";
  message.content_kind = ChatMessage::Content::kText;
  message.content = *std::move(text);
  return std::nullopt;
}

FieldError InputConverter::add_reasoning(const std::string& path, JsonObject item) {
  std::string text;
  const Json content = item["content"];
  if (!is_absent(content)) {
    if (FieldError field_error = read_parts(path + ".content", content, "", text, nullptr)) return field_error;
  }
  const Json summary = item["summary"];
  if (text.empty() && !is_absent(summary)) {
    if (FieldError field_error = read_parts(path + ".summary", summary, "\n", text, nullptr)) return field_error;
  }
  if (!text.empty()) join(assistant().reasoning, text, "\n");
  return std::nullopt;
}

FieldError InputConverter::add_call(const std::string& path, JsonObject item, bool is_custom) {
  openai::MessageToolCall call;
  std::string name;
  std::string name_space;
  if (FieldError field_error = read_required(path, item, "call_id", call.id)) return field_error;
  if (FieldError field_error = read_required(path, item, "name", name)) return field_error;
  const size_t length = text::count_code_points(name);
  if (length == 0 || length > kMaxName) {
    return bad_request(path + ".name", "{}.name: found {} characters, wanted 1 to {}", path, length, kMaxName);
  }
  if (const Json value = item["namespace"]; !is_absent(value)) {
    if (FieldError field_error = read_string(path + ".namespace", value, name_space)) return field_error;
  }
  call.name = shown_name(name_space, name);
  std::string text;
  const Json given = item["arguments"];
  if (!is_custom && is_absent(given)) {
    text = "{}";
  } else if (!is_custom && given.is_object()) {
    text = to_json(given);
  } else if (FieldError field_error = read_required(path, item, is_custom ? "input" : "arguments", text)) {
    return field_error;
  }
  if (is_custom) {
    call.arguments = openai::custom_arguments(text);
  } else {
    call.arguments = std::move(text);
  }
  assistant().tool_calls.push_back(std::move(call));
  return std::nullopt;
}

FieldError InputConverter::add_call_output(const std::string& path, JsonObject item) {
  ChatMessage message;
  message.role = "tool";
  message.content_kind = ChatMessage::Content::kText;
  if (FieldError field_error = read_required(path, item, "call_id", message.tool_call_id)) return field_error;
  const Json output = item["output"];
  if (is_absent(output)) return bad_request(path + ".output", "{}.output: missing", path);
  if (FieldError field_error = read_parts(path + ".output", output, "\n", message.content, &message.medium)) {
    return field_error;
  }
  conversation_.messages.push_back(std::move(message));
  is_within_assistant_ = false;
  return std::nullopt;
}

void InputConverter::finish() {
  std::vector<ChatMessage>& messages = conversation_.messages;
  const auto first_other =
      std::ranges::find_if(messages, [](const ChatMessage& message) { return message.role != "system"; });
  if (first_other - messages.begin() < 2) return;
  // Many templates take one system message, at the start.
  for (auto message = messages.begin() + 1; message != first_other; ++message) {
    join(messages.front().content, message->content, "\n\n");
  }
  messages.erase(messages.begin() + 1, first_other);
}

std::string complete_item(Json item, std::string_view id_base) {
  std::string_view type = "message";
  std::string_view id;
  (void)item["type"].get(type);
  (void)item["id"].get(id);
  std::string text;
  JsonWriter json(text);
  json.begin_object().member("type", type);
  json.member("id", id.empty() ? fmt::format("{}_{}", id_prefix_of(type), id_base) : std::string(id));
  JsonObject object;
  (void)item.get(object);
  for (const auto& [key, value] : object) {
    if (key != "type" && key != "id") json.key(key).raw(to_json(value));
  }
  json.end_object();
  return text;
}

}  // namespace millrace::server::responses
