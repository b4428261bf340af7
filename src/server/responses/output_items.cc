#include "server/responses/output_items.h"

#include "server/openai/response.h"

namespace millrace::server::responses {
namespace {

std::string_view type_of(ItemKind kind) {
  switch (kind) {
    case ItemKind::kMessage: return "message";
    case ItemKind::kReasoning: return "reasoning";
    case ItemKind::kFunctionCall: return "function_call";
    case ItemKind::kCustomCall: return "custom_tool_call";
    case ItemKind::kCompaction: return "compaction";
  }
  return {};
}

std::string_view to_string(ItemStatus status) {
  switch (status) {
    case ItemStatus::kInProgress: return "in_progress";
    case ItemStatus::kCompleted: return "completed";
    case ItemStatus::kIncomplete: return "incomplete";
  }
  return {};
}

void write_content(JsonWriter& json, const OutputItem& item, const ChoiceOptions& options) {
  json.key("content").begin_array();
  if (item.status != ItemStatus::kInProgress) write_part(json, item, item.text, options);
  json.end_array();
}

}  // namespace

std::string_view id_prefix(ItemKind kind) {
  switch (kind) {
    case ItemKind::kMessage: return "msg";
    case ItemKind::kReasoning: return "rs";
    case ItemKind::kFunctionCall: return "fc";
    case ItemKind::kCustomCall: return "ctc";
    case ItemKind::kCompaction: return "cmp";
  }
  return {};
}

void write_logprobs(JsonWriter& json, std::span<const ScoredToken> logprobs, const ChoiceOptions& options) {
  json.key("logprobs");
  openai::write_token_logprobs(json, options, logprobs);
}

void write_part(JsonWriter& json, const OutputItem& item, std::string_view text, const ChoiceOptions& options) {
  json.begin_object();
  if (item.kind == ItemKind::kReasoning) {
    json.member("type", "reasoning_text").member("text", text).end_object();
    return;
  }
  json.member("type", "output_text").member("text", text).key("annotations").begin_array().end_array();
  write_logprobs(json, item.logprobs, options);
  json.end_object();
}

void write_item(JsonWriter& json, const OutputItem& item, const ChoiceOptions& options) {
  const bool is_open = item.status == ItemStatus::kInProgress;
  json.begin_object().member("type", type_of(item.kind)).member("id", item.id);
  if (is_call(item.kind)) json.member("call_id", item.call_id).member("name", item.name);
  switch (item.kind) {
    case ItemKind::kMessage:
      json.member("role", "assistant");
      write_content(json, item, options);
      break;
    case ItemKind::kReasoning:
      json.key("summary").begin_array().end_array();
      write_content(json, item, options);
      json.key("encrypted_content").null();
      break;
    case ItemKind::kFunctionCall: json.member("arguments", is_open ? std::string_view() : item.text); break;
    case ItemKind::kCustomCall: json.member("input", is_open ? std::string_view() : item.text); break;
    case ItemKind::kCompaction: json.member("encrypted_content", is_open ? std::string_view() : item.text); break;
  }
  const bool has_status = item.kind != ItemKind::kCustomCall && item.kind != ItemKind::kCompaction;
  if (has_status) json.member("status", to_string(item.status));
  if (!item.name_space.empty()) json.member("namespace", item.name_space);
  json.end_object();
}

}  // namespace millrace::server::responses
