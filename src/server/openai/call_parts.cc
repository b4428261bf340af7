#include "server/openai/call_parts.h"

namespace millrace::server::openai {
namespace {

constexpr std::string_view kToolError = "Error";
constexpr std::string_view kWrappedToolError = "<tool_use_error>";

}  // namespace

FieldError read_tool_use(const std::string& path, JsonObject part, MessageToolCall& call) {
  if (FieldError field_error = read_string(path + ".id", part["id"], call.id)) return field_error;
  if (FieldError field_error = read_string(path + ".name", part["name"], call.name)) return field_error;
  const Json input = part["input"];
  call.arguments = "{}";
  if (is_absent(input)) return std::nullopt;
  if (!input.is_object()) return wrong_type(path + ".input", input, "an object");
  call.arguments = to_json(input);
  return std::nullopt;
}

void mark_tool_error(std::string& text) {
  if (text.starts_with(kToolError) || text.starts_with(kWrappedToolError)) return;
  if (!text.empty()) text.insert(0, ": ");
  text.insert(0, kToolError);
}

}  // namespace millrace::server::openai
