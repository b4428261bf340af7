#include "server/messages/message_members.h"

#include "base/json_value.h"
#include "text/chat_template/partial_json.h"

namespace millrace::server::messages {
namespace {

constexpr std::string_view kOwnPrefix = "call_";
constexpr std::string_view kPrefix = "toolu_";

/// Returns `text` without white space if it is a JSON object, else nothing.
std::string compact_object(const std::string& text) {
  const auto parsed = JsonDocument::parse(text);
  const bool is_object = parsed.has_value() && parsed->root().is_object();
  return is_object ? to_json(parsed->root()) : std::string();
}

}  // namespace

std::string_view stop_reason(const ChoiceDelta& content, const openai::Usage& usage, uint32_t max_tokens) {
  switch (content.finish.value_or(sched::FinishReason::kAbort)) {
    case sched::FinishReason::kLength:
      return usage.completion_tokens < max_tokens ? "model_context_window_exceeded" : "max_tokens";
    case sched::FinishReason::kStop: break;
    case sched::FinishReason::kAbort: return "max_tokens";  // the nearest to an output that is cut short
  }
  const bool has_stop = !content.stop_text.empty();
  if (content.has_tool_calls && !(has_stop && content.has_open_call)) return "tool_use";
  return has_stop ? "stop_sequence" : "end_turn";
}

void write_stop(JsonWriter& json, const ChoiceDelta& content, const openai::Usage& usage, uint32_t max_tokens) {
  const std::string_view reason = stop_reason(content, usage, max_tokens);
  json.member("stop_reason", reason).key("stop_sequence");
  if (reason == "stop_sequence") {
    json.value(content.stop_text);
  } else {
    json.null();
  }
}

void write_usage(JsonWriter& json, const openai::Usage& usage) {
  json.begin_object().member("input_tokens", usage.prompt_tokens - usage.cached_tokens);
  json.member("cache_creation_input_tokens", 0).member("cache_read_input_tokens", usage.cached_tokens);
  json.member("output_tokens", usage.completion_tokens);
  if (usage.reasoning_tokens) {
    json.key("output_tokens_details").begin_object().member("thinking_tokens", *usage.reasoning_tokens).end_object();
  }
  json.end_object();
}

std::string tool_use_id(std::string_view call_id) {
  if (!call_id.starts_with(kOwnPrefix)) return std::string(call_id);
  return std::string(kPrefix).append(call_id.substr(kOwnPrefix.size()));
}

std::string tool_input(const std::string& arguments) {
  if (std::string whole = compact_object(arguments); !whole.empty()) return whole;
  if (const auto closed = text::complete_partial_json(arguments)) {
    if (std::string object = compact_object(*closed); !object.empty()) return object;
  }
  if (arguments.find_first_not_of(" \t\r\n") == std::string::npos) return "{}";
  std::string wrapped;
  JsonWriter(wrapped).begin_object().member("arguments", arguments).end_object();
  return wrapped;
}

}  // namespace millrace::server::messages
