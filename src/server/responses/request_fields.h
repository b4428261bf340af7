#pragma once

#include <optional>
#include <string>

#include "server/openai/field.h"
#include "server/responses/request.h"

/// The members of a Responses request, apart from its items and tools.
namespace millrace::server::responses {

/// A request whose members are read one by one. The JSON values are of the request's document.
struct RequestFields : ResponsesRequest {
  std::string instructions;
  openai::Json input_value;
  openai::Json tools;
  openai::Json tool_choice;
  bool has_logprobs = false;
  std::optional<int32_t> alternatives;
};

/// Reads all members except items, tools and the choice of a tool, whose values it keeps.
[[nodiscard]] openai::FieldError read_fields(JsonObject object, const openai::RequestLimits& limits,
                                             RequestFields& fields);
/// Returns the members that a response repeats, as JSON without the braces.
[[nodiscard]] std::string echo_fields(JsonObject object);

}  // namespace millrace::server::responses
