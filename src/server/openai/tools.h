#pragma once

#include "server/openai/field.h"

/// Reads the tools of a conversation: which exist, which may be called, which were called.
namespace millrace::server::openai {

/// Returns whether the values of a schema are objects, as far as its type or its properties say.
[[nodiscard]] bool is_schema_of_object(JsonObject schema);
/// Reads the tool_calls of an assistant's message; `path` names them in errors.
[[nodiscard]] FieldError read_tool_calls(const std::string& path, Json value, std::vector<MessageToolCall>& calls);
[[nodiscard]] FieldError read_tools(std::string_view name, Json value, const RequestLimits&,
                                    Conversation& conversation);
[[nodiscard]] FieldError read_tool_choice(std::string_view name, Json value, const RequestLimits&,
                                          Conversation& conversation);
/// Checks a tool that tool_choice names, in the member `field`: that it exists and has the type that was said.
[[nodiscard]] FieldError check_chosen(const Conversation& conversation, std::string_view field, const ToolName& chosen);
/// Leaves the tools that tool_choice allows, once all members are read.
[[nodiscard]] FieldError restrict_tools(Conversation& conversation);
void describe_tools(SchemaWriter& schema);
/// Describes the tool_calls of a message.
void describe_tool_calls(JsonWriter& json);
void describe_tool_choice(SchemaWriter& schema);

}  // namespace millrace::server::openai
