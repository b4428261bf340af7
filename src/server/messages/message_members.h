#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/json.h"
#include "server/openai/response_writer.h"

/// The members that a whole message and the events of a stream share.
namespace millrace::server::messages {

/// Stands where Anthropic signs its model's thinking. Clients send it back, and nothing checks it.
inline constexpr std::string_view kSignature = "bWlsbHJhY2U=";

/// Returns why an output ended. Its length goes before all, and complete calls go before a stop sequence.
[[nodiscard]] std::string_view stop_reason(const ChoiceDelta& content, const openai::Usage& usage, uint32_t max_tokens);
void write_stop(JsonWriter& json, const ChoiceDelta& content, const openai::Usage& usage, uint32_t max_tokens);
/// Writes the counts of tokens. Input that the prefix cache had is counted apart from the rest.
void write_usage(JsonWriter& json, const openai::Usage& usage);
/// Returns the id of a call, which begins as Anthropic's do where the model's syntax leaves that open.
[[nodiscard]] std::string tool_use_id(std::string_view call_id);
/// Returns a call's arguments as a JSON object. One that is cut off is closed; other texts become its only member.
[[nodiscard]] std::string tool_input(const std::string& arguments);

}  // namespace millrace::server::messages
