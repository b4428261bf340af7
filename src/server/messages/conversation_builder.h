#pragma once

#include <string>
#include <string_view>

#include "server/messages/content.h"
#include "server/messages/tools.h"

namespace millrace::server::messages {

/// Turns the messages of a request into those of a chat template. Neighbours of one role become one message, as
/// Anthropic's API has it. Lives while the request is parsed.
class ConversationBuilder {
 public:
  /// Both outlive the builder.
  ConversationBuilder(const ToolList& tools, openai::Conversation& conversation)
      : tools_(tools), conversation_(conversation) {}

  /// Adds the system prompt: a text, or text blocks.
  [[nodiscard]] openai::FieldError add_system(const std::string& path, openai::Json content);
  [[nodiscard]] openai::FieldError add_message(const std::string& path, openai::Json message);
  /// Marks a last message of the assistant as the start of the output. Call after all messages.
  [[nodiscard]] openai::FieldError finish();

 private:
  [[nodiscard]] openai::FieldError add_user(const std::string& path, openai::Json content);
  [[nodiscard]] openai::FieldError add_assistant(const std::string& path, openai::Json content);
  [[nodiscard]] openai::FieldError add_tool_result(const Block& block);
  [[nodiscard]] openai::FieldError append_result_block(const Block& block, openai::ChatMessage& result) const;
  /// Returns the last message if it has this role, else a new one.
  openai::ChatMessage& message_of(std::string_view role);

  const ToolList& tools_;
  openai::Conversation& conversation_;
};

}  // namespace millrace::server::messages
