#include "server/chat_renderer.h"

#include <ctime>
#include <utility>

#include "base/json.h"
#include "server/chat_format.h"

namespace millrace::server {
namespace {

using openai::ApiResult;
using openai::bad_request;

void write_calls(JsonWriter& json, const std::vector<openai::MessageToolCall>& calls) {
  json.key("tool_calls").begin_array();
  for (const openai::MessageToolCall& call : calls) {
    json.begin_object();
    if (!call.id.empty()) json.member("id", call.id);
    json.member("type", "function").key("function").begin_object().member("name", call.name);
    json.member("arguments", call.arguments).end_object().end_object();
  }
  json.end_array();
}

/// Writes the reasoning of an earlier message under the names that templates have for it. Harmony's templates refuse
/// reasoning and content in addition to calls.
void write_reasoning(JsonWriter& json, const openai::ChatMessage& message, bool is_harmony) {
  json.member("reasoning_content", message.reasoning).member("reasoning", message.reasoning);
  const bool is_refused = !message.tool_calls.empty() && !message.content.empty();
  if (is_harmony && !is_refused) json.member("thinking", message.reasoning);
}

/// Writes a content of several parts as an array, which templates may show otherwise than one text.
void write_content(JsonWriter& json, const openai::ChatMessage& message) {
  json.key("content");
  if (message.parts.size() < 2) {
    json.value(message.content);
    return;
  }
  json.begin_array();
  for (const std::string& part : message.parts) {
    json.begin_object().member("type", "text").member("text", part).end_object();
  }
  json.end_array();
}

std::string messages_json(const openai::Conversation& conversation, bool is_harmony) {
  using Content = openai::ChatMessage::Content;
  std::string out;
  JsonWriter json(out);
  json.begin_array();
  for (const openai::ChatMessage& message : conversation.messages) {
    json.begin_object().member("role", message.role);
    if (message.content_kind == Content::kText) write_content(json, message);
    if (message.content_kind == Content::kNull) json.key("content").null();
    if (!message.name.empty()) json.member("name", message.name);
    if (!message.reasoning.empty()) write_reasoning(json, message, is_harmony);
    if (!message.tool_call_id.empty()) json.member("tool_call_id", message.tool_call_id);
    if (!message.tool_calls.empty()) write_calls(json, message.tool_calls);
    json.end_object();
  }
  json.end_array();
  return out;
}

/// Returns whether the request's template is the name of one of the model's templates.
bool names_template(const openai::Conversation& conversation, const Service& service) {
  return service.chat_template != nullptr && service.chat_template->has_template(conversation.chat_template);
}

}  // namespace

ApiResult<ChatRenderer::TemplatePtr> ChatRenderer::choose_template(const openai::Conversation& conversation) const {
  if (!conversation.chat_template.empty() && !names_template(conversation, service_)) {
    if (!options_.allow_request_chat_template) {
      return bad_request("chat_template",
                         "chat_template: no template of the model has this name, and this server does not accept a "
                         "request's own template (--allow-request-chat-template)");
    }
    auto own = text::ChatTemplate::with_tokens(conversation.chat_template, service_.special_tokens);
    if (own.has_error()) return bad_request("chat_template", "chat_template: {}", own.error().message);
    return std::move(*own);
  }
  if (service_.chat_template == nullptr) {
    return bad_request(conversation.messages_name, "the model has no chat template; use /v1/completions");
  }
  return service_.chat_template;
}

ApiResult<std::string> ChatRenderer::render(const text::ChatTemplate& chat_template,
                                            const openai::Conversation& conversation) const {
  const bool has_shown_tools = conversation.has_tools() || conversation.forbids_calls();
  if (has_shown_tools && !ChatFormat(options_, chat_template).can_call()) {
    return bad_request("tools", "tools: not supported with this model, whose chat template {} (--tool-call-parser)",
                       chat_template.supports_tools() ? "uses no tool-call format that is known" : "shows it no tools");
  }
  const bool is_harmony = ChatFormat(options_, chat_template).reasoning() == text::ReasoningFormat::kHarmony;
  const std::string messages = messages_json(conversation, is_harmony);
  text::ChatInput input;
  input.messages_json = messages;
  input.default_kwargs_json = options_.default_chat_template_kwargs;
  if (has_shown_tools) input.tools_json = conversation.tools_json;
  if (names_template(conversation, service_)) input.template_name = conversation.chat_template;
  input.documents_json = conversation.documents_json;
  if (!conversation.documents_json.empty() && !chat_template.supports_documents(input)) {
    return bad_request("documents", "documents: not supported with this chat template, which shows none");
  }
  input.reasoning_effort = conversation.reasoning_effort;
  input.enable_thinking = conversation.enable_thinking;
  if (!input.enable_thinking && !conversation.reasoning_effort.empty()) {
    input.enable_thinking = conversation.reasoning_effort != "none";
  }
  input.kwargs_json = conversation.chat_template_kwargs;
  input.add_generation_prompt = conversation.add_generation_prompt;
  input.continue_final_message = conversation.continue_final_message;
  const std::time_t now = std::time(nullptr);
  localtime_r(&now, &input.now);
  auto rendered = chat_template.render(input);
  if (rendered.has_error()) return openai::to_api_error(rendered.error(), conversation.messages_name);
  return std::move(*rendered);
}

}  // namespace millrace::server
