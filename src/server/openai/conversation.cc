#include <array>

#include "server/openai/chat_message.h"
#include "server/openai/field.h"
#include "server/openai/media.h"
#include "server/openai/thinking.h"
#include "server/openai/tools.h"

namespace millrace::server::openai {
namespace {

FieldError read_messages(std::string_view name, Json value, const RequestLimits&, Conversation& conversation) {
  JsonArray array;
  if (!value.get(array)) return wrong_type(name, value, "an array of messages");
  if (array.size() == 0) return bad_request(name, "{}: found an empty array, wanted at least one message", name);
  conversation.messages.clear();
  size_t index = 0;
  for (const Json item : array) {
    const std::string path = fmt::format("messages[{}]", index++);
    if (FieldError field_error = read_message(path, item, conversation.messages)) return field_error;
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

std::span<const Field<Conversation>> conversation_fields() {
  return kConversationFields;
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
