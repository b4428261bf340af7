#pragma once

#include <string>
#include <vector>

#include "server/openai/field.h"

/// Reads a message of a chat.
namespace millrace::server::openai {

/// Appends the message, and before it the results of calls that its parts hold, as messages of their own. `path` names
/// it in errors.
[[nodiscard]] FieldError read_message(const std::string& path, Json value, std::vector<ChatMessage>& messages);

}  // namespace millrace::server::openai
