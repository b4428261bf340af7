#pragma once

#include "server/openai/field.h"

/// Reads how a conversation's model thinks, in the forms of several servers.
namespace millrace::server::openai {

/// Reads a word of reasoning_effort; `name` names it in errors.
[[nodiscard]] FieldError read_effort(std::string_view name, Json value, const RequestLimits&,
                                     Conversation& conversation);
void describe_effort(SchemaWriter& schema);
/// Reads {"type": "enabled" | "disabled" | "adaptive" | "auto", "budget_tokens": N}, as for DeepSeek, GLM and Kimi.
[[nodiscard]] FieldError read_thinking(std::string_view name, Json value, const RequestLimits&,
                                       Conversation& conversation);
void describe_thinking(SchemaWriter& schema);
/// Reads {"effort": WORD, "enabled": BOOL, "max_tokens": N, "exclude": BOOL}, as for OpenRouter.
[[nodiscard]] FieldError read_reasoning(std::string_view name, Json value, const RequestLimits& limits,
                                        Conversation& conversation);
void describe_reasoning(SchemaWriter& schema);

}  // namespace millrace::server::openai
