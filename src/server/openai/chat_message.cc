#include "server/openai/chat_message.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "server/openai/call_parts.h"
#include "server/openai/media.h"
#include "server/openai/tools.h"

namespace millrace::server::openai {
namespace {

/// The types of text parts here and in /v1/responses.
constexpr std::array<std::string_view, 3> kTextParts = {"text", "input_text", "output_text"};
constexpr std::array<std::string_view, 5> kRoles = {"system", "developer", "user", "assistant", "tool"};

/// The parts of a content. A null member refuses parts of its kind.
struct ContentParts {
  std::vector<std::string>& texts;
  std::optional<Medium>* medium = nullptr;
  std::optional<std::string>* thoughts = nullptr;
  std::vector<MessageToolCall>* calls = nullptr;  ///< parts of type tool_use
  std::vector<ChatMessage>* results = nullptr;    ///< parts of type tool_result
};

FieldError read_all_parts(const std::string& path, Json value, const ContentParts& parts);

/// Returns the parts with newlines between them.
std::string joined(const std::vector<std::string>& parts) {
  return fmt::format("{}", fmt::join(parts, "\n"));
}

FieldError read_tool_result(const std::string& path, JsonObject part, ChatMessage& result) {
  result.role = "tool";
  result.content_kind = ChatMessage::Content::kText;
  if (FieldError field_error = read_string(path + ".tool_use_id", part["tool_use_id"], result.tool_call_id)) {
    return field_error;
  }
  if (const Json content = part["content"]; !is_absent(content)) {
    if (FieldError field_error = read_all_parts(path + ".content", content, {result.parts, &result.medium})) {
      return field_error;
    }
    result.content = joined(result.parts);
  }
  bool is_error = false;
  if (const Json flag = part["is_error"]; !is_absent(flag)) {
    if (FieldError field_error = read_bool(path + ".is_error", flag, is_error)) return field_error;
  }
  if (!is_error) return std::nullopt;
  mark_tool_error(result.content);
  result.parts.clear();
  return std::nullopt;
}

FieldError read_thoughts(const std::string& path, JsonObject part, std::optional<std::string>& thoughts) {
  if (!thoughts) thoughts.emplace();
  std::string text;
  FieldError field_error = read_content(path + ".thinking", part["thinking"], text);
  *thoughts += text;
  return field_error;
}

FieldError read_part(const std::string& path, Json part, const ContentParts& parts) {
  JsonObject object;
  if (!part.get(object)) return wrong_type(path, part, "an object");
  std::string_view type;
  if (!object["type"].get(type)) {
    return bad_request(path, "{}: a content part has no type", path);
  }
  if (const std::string_view word = medium_of_type(type); parts.medium != nullptr && !word.empty()) {
    parts.texts.push_back(replace_medium(word, path, *parts.medium));
    return std::nullopt;
  }
  if (type == "thinking" && parts.thoughts != nullptr) return read_thoughts(path, object, *parts.thoughts);
  if (type == "tool_use" && parts.calls != nullptr) return read_tool_use(path, object, parts.calls->emplace_back());
  if (type == "tool_result" && parts.results != nullptr) {
    return read_tool_result(path, object, parts.results->emplace_back());
  }
  std::string_view text;
  if (std::ranges::find(kTextParts, type) == kTextParts.end() && type != "refusal") {
    return bad_request(path, "{}: content parts of type '{}' are not supported, only texts and refusals are", path,
                       type.substr(0, 64));
  }
  for (const auto& member : object) {
    if ((member.key == "text" || member.key == "refusal") && !member.value.is_null() && !member.value.get(text)) {
      return wrong_type(fmt::format("{}.{}", path, member.key), member.value, "a string");
    }
  }
  const std::string_view name = type == "refusal" ? type : "text";
  if (!object[name].get(text)) {
    return bad_request(path, "{}: a {} part has no {}", path, type, name);
  }
  parts.texts.emplace_back(text);
  return std::nullopt;
}

FieldError read_all_parts(const std::string& path, Json value, const ContentParts& parts) {
  parts.texts.clear();
  JsonArray array;
  if (!value.get(array)) {
    if (!value.is_string()) return wrong_type(path, value, "a string or an array of text parts");
    return read_string(path, value, parts.texts.emplace_back());
  }
  for (const Json part : array) {
    if (FieldError field_error = read_part(path, part, parts)) return field_error;
  }
  return std::nullopt;
}

bool is_empty_array(Json value) {
  JsonArray array;
  return value.get(array) && array.empty();
}

/// What the members of a message give next to the message itself.
struct MessageExtras {
  std::string refused;
  std::optional<std::string> thoughts;
  std::vector<MessageToolCall> used;  ///< parts of type tool_use
  std::vector<ChatMessage> results;   ///< parts of type tool_result
};

FieldError read_message_content(const std::string& name, Json value, ChatMessage& message, MessageExtras& extras) {
  extras.thoughts.reset();
  extras.used.clear();
  extras.results.clear();
  FieldError field_error =
      read_all_parts(name, value, {message.parts, &message.medium, &extras.thoughts, &extras.used, &extras.results});
  message.content = joined(message.parts);
  return field_error;
}

FieldError read_member(const std::string& name, std::string_view key, Json value, ChatMessage& message,
                       MessageExtras& extras) {
  if (key == "role") return read_string(name, value, message.role);
  if (key == "content") return read_message_content(name, value, message, extras);
  if (key == "refusal") return read_string(name, value, extras.refused);
  if (key == "name") return read_string(name, value, message.name);
  if (key == "reasoning_content" || key == "reasoning") return read_string(name, value, message.reasoning);
  if (key == "tool_calls") return read_tool_calls(name, value, message.tool_calls);
  if (key == "tool_call_id") return read_string(name, value, message.tool_call_id);
  if (key == "function_call" && !is_empty_array(value)) {
    return bad_request(name, "{}: not supported by this server, tool_calls is", name);
  }
  return std::nullopt;
}

/// Refuses what a message of this role does not have.
FieldError check_role(const std::string& path, const ChatMessage& message, const MessageExtras& extras) {
  if (message.role.empty()) return bad_request(path + ".role", "{}.role: missing", path);
  if (std::ranges::find(kRoles, message.role) == kRoles.end()) {
    return bad_request(path + ".role", "{}.role: found '{}', wanted system, developer, user, assistant or tool", path,
                       message.role.substr(0, 64));
  }
  if (message.role != "assistant") {
    if (extras.thoughts || !extras.used.empty()) {
      return bad_request(path + ".content", "{}.content: only an assistant has parts of type '{}'", path,
                         extras.thoughts ? "thinking" : "tool_use");
    }
    if (!message.tool_calls.empty()) {
      return bad_request(path + ".tool_calls", "{}.tool_calls: the message is not the assistant's", path);
    }
  }
  if (message.role != "user" && !extras.results.empty()) {
    return bad_request(path + ".content", "{}.content: only a user has parts of type 'tool_result'", path);
  }
  const bool needs_content = message.role != "assistant" && message.role != "tool";
  if (message.content_kind != ChatMessage::Content::kText && needs_content) {
    return bad_request(path + ".content", "{}.content: missing", path);
  }
  return check_medium(message);
}

}  // namespace

FieldError read_parts(const std::string& path, Json value, std::vector<std::string>& parts) {
  return read_all_parts(path, value, {parts});
}

FieldError read_content(const std::string& path, Json value, std::string& content) {
  std::vector<std::string> parts;
  if (FieldError field_error = read_parts(path, value, parts)) return field_error;
  content = joined(parts);
  return std::nullopt;
}

FieldError read_message(const std::string& path, Json value, std::vector<ChatMessage>& messages) {
  JsonObject object;
  if (!value.get(object)) return wrong_type(path, value, "an object");
  using Content = ChatMessage::Content;
  ChatMessage message;
  MessageExtras extras;
  for (const auto& member : object) {
    if (member.key == "content") message.content_kind = member.value.is_null() ? Content::kNull : Content::kText;
    if (member.value.is_null()) continue;
    const std::string name = fmt::format("{}.{}", path, member.key.substr(0, 64));
    if (FieldError field_error = read_member(name, member.key, member.value, message, extras)) return field_error;
  }
  // A response of OpenAI's that refuses has no other text.
  if (message.content_kind != Content::kText && !extras.refused.empty()) {
    message.content = std::move(extras.refused);
    message.content_kind = Content::kText;
  }
  if (FieldError field_error = check_role(path, message, extras)) return field_error;
  if (message.reasoning.empty()) message.reasoning = extras.thoughts.value_or("");
  // A client that writes both forms means the same calls.
  if (message.tool_calls.empty()) message.tool_calls = std::move(extras.used);
  // Templates know the older word; to them the newer one is an unknown role.
  if (message.role == "developer") message.role = "system";
  // Results come first: they belong to the calls of the message before.
  const bool is_results_only = !extras.results.empty() && message.parts.empty();
  std::ranges::move(extras.results, std::back_inserter(messages));
  if (!is_results_only) messages.push_back(std::move(message));
  return std::nullopt;
}

void describe_message(SchemaWriter& schema) {
  JsonWriter& json = schema.json();
  json.member("type", "object").key("required").raw(R"(["role"])").key("properties").begin_object();
  json.key("role").begin_object().key("enum").begin_array();
  for (const std::string_view role : kRoles) json.value(role);
  json.end_array().end_object().key("content").begin_object();
  json.member("description", "Required for every role except assistant and tool");
  json.key("anyOf").raw(R"([{"type":"string"},{"type":"array","items":{"type":"object","required":["type"],"anyOf":[)"
                        R"({"required":["text"],"properties":{"type":{"enum":["text","input_text","output_text"]},)"
                        R"("text":{"type":"string"},)"
                        R"("refusal":{"type":["string","null"]}}},)"
                        R"({"required":["refusal"],"properties":{"type":{"const":"refusal"},)"
                        R"("refusal":{"type":"string"},"text":{"type":["string","null"]}}},)"
                        R"({"required":["thinking"],"properties":{"type":{"const":"thinking"},"thinking":{"anyOf":[)"
                        R"({"type":"string"},{"type":"array","items":{"type":"object","required":["type","text"],)"
                        R"("properties":{"type":{"enum":["text","input_text","output_text"]},)"
                        R"("text":{"type":"string"}}}}]}}},)"
                        R"({"description":"A call","required":["id","name"],"properties":{"type":{"const":"tool_use"},)"
                        R"("id":{"type":"string"},"name":{"type":"string"},"input":{"type":["object","null"]}}},)"
                        R"({"description":"The result of a call","required":["tool_use_id"],"properties":{)"
                        R"("type":{"const":"tool_result"},"tool_use_id":{"type":"string"},"content":{"anyOf":[)"
                        R"({"type":["string","null"]},{"type":"array","items":{"type":"object","required":["type"],)"
                        R"("anyOf":[{"required":["text"],"properties":{"type":{"enum":["text","input_text",)"
                        R"("output_text"]},"text":{"type":"string"}}},{"required":["refusal"],"properties":{)"
                        R"("type":{"const":"refusal"},"refusal":{"type":"string"}}},{"properties":{"type":{"enum":[)"
                        R"("image","image_url","input_image","input_audio","audio_url","video_url","file",)"
                        R"("input_file","document"]}}}]}}]},)"
                        R"("is_error":{"type":["boolean","null"]}}},)"
                        R"({"description":"Of a user or a tool: the model gets a note instead. A 400 in a question",)"
                        R"("properties":{"type":{"enum":["image","image_url","input_image","input_audio","audio_url",)"
                        R"("video_url","file","input_file","document"]}}}]}},{"type":"null"}])");
  json.end_object().key("name").raw(R"({"type":["string","null"]})");
  for (const char* name : {"reasoning_content", "reasoning", "refusal", "tool_call_id"}) {
    json.key(name).raw(R"({"type":["string","null"]})");
  }
  describe_tool_calls(json.key("tool_calls"));
  json.key("function_call").raw(R"({"enum":[null,[]]})");
  json.end_object();
  constexpr std::string_view kTexts = R"("text","input_text","output_text","refusal")";
  json.key("anyOf").raw(
      fmt::format(R"([{{"properties":{{"role":{{"const":"user"}},"content":{{"items":{{"properties":)"
                  R"({{"type":{{"not":{{"enum":["thinking","tool_use"]}}}}}}}}}}}}}},)"
                  R"({{"properties":{{"role":{{"const":"tool"}},"content":{{"items":{{"properties":)"
                  R"({{"type":{{"not":{{"enum":["thinking","tool_use","tool_result"]}}}}}}}}}}}}}},)"
                  R"({{"properties":{{"role":{{"const":"assistant"}},"content":{{"items":{{"properties":)"
                  R"({{"type":{{"enum":[{0},"thinking","tool_use"]}}}}}}}}}}}},)"
                  R"({{"properties":{{"content":{{"items":{{"properties":{{"type":{{"enum":[{0}]}}}}}}}}}}}}])",
                  kTexts));
}

}  // namespace millrace::server::openai
