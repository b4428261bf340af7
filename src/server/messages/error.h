#pragma once

#include <string>
#include <string_view>

#include "server/openai/error.h"

/// Errors as Anthropic's clients expect them.
namespace millrace::server::messages {

/// Returns Anthropic's error type of a status, e.g. "overloaded_error".
[[nodiscard]] std::string_view error_type(unsigned status);
/// Appends {"type":"error","error":{…}}.
void append_error(std::string& out, const openai::ApiError& error);
[[nodiscard]] HttpResponse error_response(const openai::ApiError& error);

}  // namespace millrace::server::messages
