#pragma once

#include <string>

#include "server/openai/request.h"

/// The requests of Anthropic's Messages API, parsed into the chat requests that they mean. Every field is validated.
/// What only steers Anthropic's own service (cache_control, metadata, …) is accepted and never reaches the prompt.
namespace millrace::server::messages {

/// Parses the body of /v1/messages.
[[nodiscard]] openai::ApiResult<openai::ChatRequest> parse_message_request(const std::string& body,
                                                                           const openai::RequestLimits& limits);
/// Parses the body of /v1/messages/count_tokens: the same without max_tokens.
[[nodiscard]] openai::ApiResult<openai::ChatRequest> parse_count_request(const std::string& body,
                                                                         const openai::RequestLimits& limits);
/// Appends "Name": {schema} for the body of each, for "components"/"schemas" of an OpenAPI document.
void append_request_schemas(std::string& out, const openai::RequestLimits& limits);

}  // namespace millrace::server::messages
