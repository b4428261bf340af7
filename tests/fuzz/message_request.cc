#include <algorithm>

#include "base/check.h"
#include "base/json_value.h"
#include "fuzz/targets.h"
#include "server/messages/attribution.h"
#include "server/messages/message_members.h"
#include "server/messages/request.h"

namespace millrace::fuzz {
namespace {

using namespace server::openai;

constexpr RequestLimits kLimits{.vocab_size = 1000, .max_choices = 64};

bool is_object(const std::string& text) {
  const auto parsed = JsonDocument::parse(text);
  return parsed.has_value() && parsed->root().is_object();
}

/// Checks what a chat template and the engine rely on.
void check_request(const ApiResult<ChatRequest>& parsed) {
  if (parsed.has_error()) {
    CHECK(parsed.error().status == 400 && !parsed.error().message.empty());
    return;
  }
  const Conversation& conversation = parsed->conversation;
  CHECK(!parsed->model.empty() && !conversation.messages.empty());
  CHECK(parsed->stop.size() <= 16);
  std::string_view role_before;
  for (const ChatMessage& message : conversation.messages) {
    CHECK(message.content_kind == ChatMessage::Content::kText);
    CHECK(message.role == "tool" || message.role != role_before);
    CHECK(message.role == "assistant" || (message.tool_calls.empty() && message.reasoning.empty()));
    CHECK(
        std::ranges::all_of(message.tool_calls, [](const MessageToolCall& call) { return is_object(call.arguments); }));
    role_before = message.role;
  }
  CHECK(conversation.continue_final_message == (role_before == "assistant"));
  CHECK(conversation.tools.empty() == conversation.tools_json.empty());
}

}  // namespace

void message_request(std::string_view input) {
  const std::string body(input);
  const auto message = server::messages::parse_message_request(body, kLimits);
  const auto count = server::messages::parse_count_request(body, kLimits);
  check_request(message);
  check_request(count);
  CHECK(message.has_error() || (message->max_tokens >= 1u && count.has_value()));
  CHECK(is_object(server::messages::tool_input(body)));
  std::string text = body;
  server::messages::remove_attribution(text);
  CHECK(text.size() <= body.size());
}

}  // namespace millrace::fuzz
