#include <algorithm>
#include <array>

#include "server/openai/field.h"
#include "server/openai/media.h"
#include "server/openai/thinking.h"
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
};

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
  if (type == "thinking" && parts.thoughts != nullptr) {
    if (!*parts.thoughts) parts.thoughts->emplace();
    std::string text;
    if (FieldError field_error = read_content(path + ".thinking", object["thinking"], text)) return field_error;
    **parts.thoughts += text;
    return std::nullopt;
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

/// Returns the parts with newlines between them.
std::string joined(const std::vector<std::string>& parts) {
  return fmt::format("{}", fmt::join(parts, "\n"));
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

FieldError read_message(const std::string& path, Json value, ChatMessage& message) {
  JsonObject object;
  if (!value.get(object)) return wrong_type(path, value, "an object");
  using Content = ChatMessage::Content;
  std::string refused;
  std::optional<std::string> thoughts;
  for (const auto& member : object) {
    const std::string name = fmt::format("{}.{}", path, member.key.substr(0, 64));
    if (member.key == "content") message.content_kind = member.value.is_null() ? Content::kNull : Content::kText;
    if (member.value.is_null()) continue;
    FieldError field_error;
    if (member.key == "role") {
      field_error = read_string(name, member.value, message.role);
    } else if (member.key == "content") {
      thoughts.reset();
      field_error = read_all_parts(name, member.value, {message.parts, &message.medium, &thoughts});
      message.content = joined(message.parts);
    } else if (member.key == "refusal") {
      field_error = read_string(name, member.value, refused);
    } else if (member.key == "name") {
      field_error = read_string(name, member.value, message.name);
    } else if (member.key == "reasoning_content" || member.key == "reasoning") {
      field_error = read_string(name, member.value, message.reasoning);
    } else if (member.key == "tool_calls") {
      field_error = read_tool_calls(name, member.value, message.tool_calls);
    } else if (member.key == "tool_call_id") {
      field_error = read_string(name, member.value, message.tool_call_id);
    } else if (member.key == "function_call" && !is_empty_array(member.value)) {
      field_error = bad_request(name, "{}: not supported by this server, tool_calls is", name);
    }
    if (field_error) return field_error;
  }
  // A response of OpenAI's that refuses has no other text.
  if (message.content_kind != Content::kText && !refused.empty()) {
    message.content = std::move(refused);
    message.content_kind = Content::kText;
  }
  if (message.role.empty()) return bad_request(path + ".role", "{}.role: missing", path);
  if (std::find(kRoles.begin(), kRoles.end(), message.role) == kRoles.end()) {
    return bad_request(path + ".role", "{}.role: found '{}', wanted system, developer, user, assistant or tool", path,
                       message.role.substr(0, 64));
  }
  if (thoughts && message.role != "assistant") {
    return bad_request(path + ".content", "{}.content: only an assistant has parts of type 'thinking'", path);
  }
  if (message.reasoning.empty()) message.reasoning = thoughts.value_or("");
  if (FieldError field_error = check_medium(message)) return field_error;
  if (!message.tool_calls.empty() && message.role != "assistant") {
    return bad_request(path + ".tool_calls", "{}.tool_calls: the message is not the assistant's", path);
  }
  const bool needs_content = message.role != "assistant" && message.role != "tool";
  if (message.content_kind != Content::kText && needs_content) {
    return bad_request(path + ".content", "{}.content: missing", path);
  }
  // Templates know the older word; to them the newer one is an unknown role.
  if (message.role == "developer") message.role = "system";
  return std::nullopt;
}

FieldError read_messages(std::string_view name, Json value, const RequestLimits&, Conversation& conversation) {
  JsonArray array;
  if (!value.get(array)) return wrong_type(name, value, "an array of messages");
  if (array.size() == 0) return bad_request(name, "{}: found an empty array, wanted at least one message", name);
  conversation.messages.clear();
  for (const Json item : array) {
    const std::string path = fmt::format("messages[{}]", conversation.messages.size());
    if (FieldError field_error = read_message(path, item, conversation.messages.emplace_back())) return field_error;
  }
  return std::nullopt;
}

FieldError read_template(std::string_view name, Json value, const RequestLimits&, Conversation& conversation) {
  return read_string(name, value, conversation.chat_template);
}

FieldError read_documents(std::string_view name, Json value, const RequestLimits&, Conversation& conversation) {
  JsonArray array;
  if (!value.get(array)) return wrong_type(name, value, "an array of documents");
  size_t index = 0;
  for (const Json item : array) {
    if (!item.is_object()) return wrong_type(fmt::format("documents[{}]", index), item, "an object");
    ++index;
  }
  conversation.documents_json = index == 0 ? std::string() : to_json(value);
  return std::nullopt;
}

FieldError read_template_kwargs(std::string_view name, Json value, const RequestLimits&, Conversation& conversation) {
  if (!value.is_object()) return wrong_type(name, value, "an object");
  conversation.chat_template_kwargs = to_json(value);
  return std::nullopt;
}

void describe_messages(SchemaWriter& schema) {
  schema.type("array");
  schema.json().member("minItems", 1).key("items").raw(R"({"$ref":"#/components/schemas/ChatMessage"})");
}

void describe_documents(SchemaWriter& schema) {
  schema.type("array");
  schema.json().key("items").raw(R"({"type":"object"})");
}

constexpr std::array kConversationFields = {
    Field<Conversation>{"messages", read_messages, describe_messages},
    flag_field<Conversation, &Conversation::add_generation_prompt>("add_generation_prompt", "Default true"),
    flag_field<Conversation, &Conversation::continue_final_message>(
        "continue_final_message", "Only without add_generation_prompt, after an assistant's message"),
    Field<Conversation>{"chat_template", read_template, [](SchemaWriter& schema) { schema.type("string"); },
                        "The name of one of the model's templates; with --allow-request-chat-template also a text"},
    Field<Conversation>{"documents", read_documents, describe_documents,
                        "Only where the chat template renders documents"},
    Field<Conversation>{"chat_template_kwargs", read_template_kwargs,
                        [](SchemaWriter& schema) { schema.type("object"); }},
    Field<Conversation>{"reasoning_effort", read_effort, describe_effort,
                        "A variable of the template; enable_thinking is false with none, else true"},
    flag_field<Conversation, &Conversation::enable_thinking>("enable_thinking", "A variable of the template"),
    Field<Conversation>{"thinking", read_thinking, describe_thinking,
                        "The template's variables enable_thinking and thinking; budget_tokens bounds the reasoning"},
    Field<Conversation>{"reasoning", read_reasoning, describe_reasoning,
                        "Effort as reasoning_effort, enabled as enable_thinking; max_tokens bounds the reasoning, "
                        "exclude omits it"},
    Field<Conversation>{"tools", read_tools, describe_tools},
    Field<Conversation>{"tool_choice", read_tool_choice, describe_tool_choice,
                        "Default auto; none hides the tools from the model; required or a function: the answer "
                        "is a call"},
};

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

std::span<const Field<Conversation>> conversation_fields() {
  return kConversationFields;
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
      fmt::format(R"([{{"properties":{{"role":{{"enum":["user","tool"]}},"content":{{"items":{{"properties":)"
                  R"({{"type":{{"not":{{"const":"thinking"}}}}}}}}}}}}}},)"
                  R"({{"properties":{{"role":{{"const":"assistant"}},"content":{{"items":{{"properties":)"
                  R"({{"type":{{"enum":[{0},"thinking"]}}}}}}}}}}}},)"
                  R"({{"properties":{{"content":{{"items":{{"properties":{{"type":{{"enum":[{0}]}}}}}}}}}}}}])",
                  kTexts));
}

FieldError finish_conversation(Conversation& conversation) {
  if (FieldError field_error = restrict_tools(conversation)) return field_error;
  if (conversation.messages.empty()) return bad_request("messages", "messages: missing");
  if (conversation.forces_call() && conversation.tools.empty()) {
    return bad_request("tool_choice", "tool_choice: allowed only with tools");
  }
  if (conversation.tool_choice == ToolChoice::kNamed) {
    const ToolName chosen{.name = conversation.chosen_tool, .is_custom = conversation.chooses_custom};
    if (FieldError field_error = check_chosen(conversation, "tool_choice", chosen)) return field_error;
  }
  if (conversation.forces_call() && conversation.continue_final_message) {
    return bad_request("tool_choice", "tool_choice: with continue_final_message only auto or none");
  }
  if (FieldError field_error = check_media(conversation)) return field_error;
  if (!conversation.continue_final_message) return std::nullopt;
  if (conversation.add_generation_prompt) {
    return bad_request("continue_final_message",
                       "continue_final_message: allowed only with add_generation_prompt false");
  }
  if (conversation.messages.back().role != "assistant") {
    return bad_request("continue_final_message", "continue_final_message: the last message is not the assistant's");
  }
  return std::nullopt;
}

}  // namespace millrace::server::openai
