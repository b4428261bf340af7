#pragma once

#include <string>
#include <string_view>

#include "server/openai/field.h"
#include "server/responses/request.h"

/// Reads the tools of a Responses request, which have other forms than those of a chat.
namespace millrace::server::responses {

/// Returns the name that the model is shown for a tool of a namespace; `name` itself outside of namespaces.
[[nodiscard]] std::string shown_name(std::string_view name_space, std::string_view name);

/// Reads "tools", and those of the items of `input` that add some: functions, namespaces of functions and custom tools.
/// Tools that a server hosts are left out.
[[nodiscard]] openai::FieldError read_tools(openai::Json value, openai::Json input, ResponsesRequest& request);
/// Reads "tool_choice", once the tools are read.
[[nodiscard]] openai::FieldError read_tool_choice(openai::Json value, ResponsesRequest& request);

}  // namespace millrace::server::responses
