#pragma once

#include "server/openai/field.h"

/// Tools in a conversation: what there is, what is to be called, what was called.
namespace millrace::server::openai {

/// The tool_calls of an assistant's message, which stand in `path`.
[[nodiscard]] FieldError read_tool_calls(const std::string& path, Json value, std::vector<MessageToolCall>& calls);
[[nodiscard]] FieldError read_tools(std::string_view name, Json value, const RequestLimits&,
                                    Conversation& conversation);
[[nodiscard]] FieldError read_tool_choice(std::string_view name, Json value, const RequestLimits&,
                                          Conversation& conversation);
void describe_tools(SchemaWriter& schema);
void describe_tool_choice(SchemaWriter& schema);

}  // namespace millrace::server::openai
