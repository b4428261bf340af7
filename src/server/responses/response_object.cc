#include "server/responses/response_object.h"

#include <chrono>

namespace millrace::server::responses {
namespace {

int64_t unix_seconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

void write_response_usage(JsonWriter& json, const openai::Usage& usage) {
  json.begin_object().member("input_tokens", usage.prompt_tokens);
  json.key("input_tokens_details").begin_object().member("cached_tokens", usage.cached_tokens);
  json.member("cache_write_tokens", 0).end_object();
  json.member("output_tokens", usage.completion_tokens);
  json.key("output_tokens_details").begin_object();
  json.member("reasoning_tokens", usage.reasoning_tokens.value_or(0)).end_object();
  json.member("total_tokens", usage.prompt_tokens + usage.completion_tokens).end_object();
}

void write_outcome(JsonWriter& json, const ResponseState& state) {
  json.key("completed_at");
  if (state.status == ResponseStatus::kCompleted) {
    json.value(unix_seconds());
  } else {
    json.null();
  }
  json.member("status", to_string(state.status)).key("error");
  if (state.error != nullptr) {
    json.begin_object().member("code", failure_code(*state.error)).member("message", state.error->message);
    json.end_object();
  } else {
    json.null();
  }
  json.key("incomplete_details");
  if (state.status == ResponseStatus::kIncomplete) {
    json.begin_object().member("reason", "max_output_tokens").end_object();
  } else {
    json.null();
  }
}

}  // namespace

std::string_view to_string(ResponseStatus status) {
  switch (status) {
    case ResponseStatus::kQueued: return "queued";
    case ResponseStatus::kInProgress: return "in_progress";
    case ResponseStatus::kCompleted: return "completed";
    case ResponseStatus::kIncomplete: return "incomplete";
    case ResponseStatus::kFailed: return "failed";
    case ResponseStatus::kCancelled: return "cancelled";
  }
  return {};
}

std::string_view failure_code(const openai::ApiError& error) {
  if (!error.code.empty()) return error.code;
  if (error.status == 429) return "rate_limit_exceeded";
  return error.status >= 500 ? "server_error" : "invalid_prompt";
}

void write_response(JsonWriter& json, const ResponseHead& head, const ResponseState& state,
                    const openai::ResponseInfo& info, const ChoiceOptions& options) {
  json.begin_object().member("id", info.id).member("object", "response").member("created_at", info.created_s);
  write_outcome(json, state);
  json.member("model", info.model).key("output").begin_array();
  for (const OutputItem& item : state.output) write_item(json, item, options);
  json.end_array().member("temperature", head.temperature).member("top_p", head.top_p);
  json.member("service_tier", "default").key("usage");
  if (state.usage != nullptr) {
    write_response_usage(json, *state.usage);
  } else {
    json.null();
  }
  json.raw(head.echo).end_object();
}

void write_compaction(JsonWriter& json, std::span<const StoredItem> kept, const ResponseState& state,
                      const openai::ResponseInfo& info, const ChoiceOptions& options) {
  json.begin_object().member("id", info.id).member("object", "response.compaction");
  json.member("created_at", info.created_s).key("output").begin_array();
  for (const StoredItem& item : kept) json.raw(item.json);
  for (const OutputItem& item : state.output) write_item(json, item, options);
  json.end_array().key("usage");
  write_response_usage(json, *state.usage);
  json.end_object();
}

}  // namespace millrace::server::responses
