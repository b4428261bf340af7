#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/openai/field.h"
#include "server/openai/request.h"

/// Turns the items of a Responses request into the messages of a chat.
namespace millrace::server::responses {

/// Collects items in order. Consecutive reasoning, messages and calls of the assistant become one message, and a
/// leading run of system and developer messages becomes one system message.
class InputConverter {
 public:
  /// Appends to the messages of `conversation`, which outlives the converter.
  explicit InputConverter(openai::Conversation& conversation) : conversation_(conversation) {}

  /// Appends what `item` says; `path` names it in errors. Items of hosted tools, and of
  /// types that this server does not know, are left out.
  [[nodiscard]] openai::FieldError add(const std::string& path, openai::Json item);
  /// Completes the messages, once all items are there.
  void finish();

 private:
  [[nodiscard]] openai::FieldError add_message(const std::string& path, JsonObject item);
  /// Appends what another agent says, as a message of the user. Parts that hold no text become notes.
  [[nodiscard]] openai::FieldError add_agent_message(const std::string& path, JsonObject item);
  /// Appends the summary of an earlier part, as a message of the user. What another server encrypted is left out.
  [[nodiscard]] openai::FieldError add_summary(const std::string& path, JsonObject item);
  [[nodiscard]] openai::FieldError add_reasoning(const std::string& path, JsonObject item);
  [[nodiscard]] openai::FieldError add_call(const std::string& path, JsonObject item, bool is_custom);
  [[nodiscard]] openai::FieldError add_call_output(const std::string& path, JsonObject item);
  /// Returns the assistant's message that goes on, or a new one.
  [[nodiscard]] openai::ChatMessage& assistant();

  openai::Conversation& conversation_;
  bool is_within_assistant_ = false;  ///< the last message is the assistant's, and items may still join it
};

/// Returns the item as JSON with a type and an id; `id_base` becomes part of an id that it lacks.
[[nodiscard]] std::string complete_item(openai::Json item, std::string_view id_base);

}  // namespace millrace::server::responses
