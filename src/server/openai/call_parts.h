#pragma once

#include <string>

#include "server/openai/field.h"

/// Calls and results as parts of a message's content, the form of Anthropic's API.
namespace millrace::server::openai {

/// Reads {"type": "tool_use", "id": …, "name": …, "input": {…}}; `path` names it in errors.
[[nodiscard]] FieldError read_tool_use(const std::string& path, JsonObject part, MessageToolCall& call);
/// Marks the text of a failed call as an error, since a chat template has no other way to say so.
void mark_tool_error(std::string& text);

}  // namespace millrace::server::openai
