#include <algorithm>
#include <array>
#include <optional>

#include "server/openai/field.h"
#include "server/openai/media.h"
#include "server/responses/compaction.h"
#include "server/responses/input_items.h"
#include "server/responses/request.h"
#include "server/responses/request_fields.h"
#include "server/responses/store.h"
#include "server/responses/tools.h"

namespace millrace::server::responses {
namespace {

using openai::ApiError;
using openai::ApiResult;
using openai::bad_request;
using openai::Document;
using openai::FieldError;
using openai::Json;
using openai::wrong_type;

ApiError not_stored(std::string_view name, std::string_view id) {
  ApiError error(400, fmt::format("{}: response '{}' is not stored", name, id.substr(0, 256)), std::string(name));
  error.code = "previous_response_not_found";
  return error;
}

/// Gathers the items of previous responses and of the request itself.
class InputReader {
 public:
  InputReader(ResponsesRequest& request, const ResponseStore& store, std::string_view id_base)
      : request_(request), store_(store), id_base_(id_base), converter_(request.conversation) {}

  FieldError read_previous();
  FieldError read(Json input);
  void finish() { converter_.finish(); }

 private:
  FieldError add_stored(const std::string& path, const std::string& json);
  FieldError add(const std::string& path, Json item);
  /// Returns whether `request_.input` takes the item.
  [[nodiscard]] bool keeps(Json item) const;

  ResponsesRequest& request_;
  const ResponseStore& store_;
  std::string_view id_base_;
  InputConverter converter_;
};

FieldError InputReader::read_previous() {
  if (request_.previous_response_id.empty()) return std::nullopt;
  const auto previous = store_.find(request_.previous_response_id);
  if (previous == nullptr) return not_stored("previous_response_id", request_.previous_response_id);
  for (const auto* items : {&previous->input, &previous->output}) {
    for (const StoredItem& item : *items) {
      if (FieldError field_error = add_stored("previous_response_id", item.json)) return field_error;
    }
  }
  return std::nullopt;
}

FieldError InputReader::read(Json input) {
  JsonArray items;
  if (input.is_string()) {
    std::string item;
    JsonWriter json(item);
    json.begin_object().member("type", "message").member("role", "user").key("content").begin_array().begin_object();
    json.member("type", "input_text").key("text").raw(to_json(input)).end_object().end_array().end_object();
    auto document = JsonDocument::parse(item);
    return add("input", document->root());
  }
  if (!input.get(items)) return wrong_type("input", input, "a string or an array of items");
  size_t index = 0;
  for (const Json item : items) {
    if (FieldError field_error = add(fmt::format("input[{}]", index), item)) return field_error;
    ++index;
  }
  return std::nullopt;
}

FieldError InputReader::add_stored(const std::string& path, const std::string& json) {
  auto document = JsonDocument::parse(json);
  if (document.has_error()) return openai::to_api_error(document.error(), path);
  if (keeps(document->root())) request_.input.push_back(json);
  return converter_.add(path, document->root());
}

bool InputReader::keeps(Json item) const {
  if (request_.compaction != Compaction::kObject) return request_.store;
  std::string_view role;
  return item["role"].get(role) && role == "user";
}

FieldError InputReader::add(const std::string& path, Json item) {
  std::string_view type;
  std::string_view id;
  (void)item["type"].get(type);
  const bool is_bare_id = item["type"].is_missing() && item["role"].is_missing() && item["id"].is_string();
  if (is_bare_id || type == "item_reference") {
    if (!item["id"].get(id)) return bad_request(path + ".id", "{}.id: missing, or no string", path);
    const std::string stored = store_.find_item(id);
    if (!stored.empty()) return add_stored(path, stored);
    return bad_request(path + ".id", "{}.id: item '{}' is not stored", path, id.substr(0, 256));
  }
  if (type == "compaction_trigger") {
    if (request_.compaction == Compaction::kNone) request_.compaction = Compaction::kItem;
    return std::nullopt;
  }
  if (FieldError field_error = converter_.add(path, item)) return field_error;
  if (!keeps(item)) return std::nullopt;
  request_.input.push_back(complete_item(item, fmt::format("{}_i{}", id_base_, request_.input.size())));
  return std::nullopt;
}

FieldError check_relations(const RequestFields& fields) {
  const openai::Conversation& conversation = fields.conversation;
  if (fields.background && !fields.store) {
    return bad_request("background", "background: allowed only with store true, since the response is fetched later");
  }
  if (conversation.messages.empty()) return bad_request("input", "input: missing, or without an item for the model");
  // Who wants a summary asks no question and wants no call.
  if (fields.compaction != Compaction::kNone) return std::nullopt;
  if (FieldError field_error = openai::check_media(conversation)) return field_error;
  if (conversation.forces_call() && conversation.continue_final_message) {
    return bad_request("tool_choice", "tool_choice: only auto or none where the last item is unfinished");
  }
  return std::nullopt;
}

void add_instructions(ResponsesRequest& request, const std::string& instructions) {
  if (instructions.empty()) return;
  openai::ChatMessage& message = request.conversation.messages.emplace_back();
  message.role = "system";
  message.content_kind = openai::ChatMessage::Content::kText;
  message.content = instructions;
}

/// Reads a parsed body, as parse_responses_request does.
ApiResult<ResponsesRequest> read_request(const Document& document, const openai::RequestLimits& limits,
                                         const ResponseStore& store, std::string_view id_base, Compaction compaction) {
  RequestFields fields;
  fields.compaction = compaction;
  fields.max_tokens_name = "max_output_tokens";
  fields.conversation.messages_name = "input";
  fields.fills_context = true;
  if (FieldError field_error = openai::check_unsupported(document.object(), true)) return *field_error;
  if (FieldError field_error = read_fields(document.object(), limits, fields)) return *field_error;
  if (compaction == Compaction::kObject) fields.store = fields.background = fields.stream = false;
  if (FieldError field_error = openai::check_common(fields)) return *field_error;
  if (FieldError field_error = read_tools(fields.tools, fields.input_value, fields)) return *field_error;
  if (!fields.tool_choice.is_missing()) {
    if (FieldError field_error = read_tool_choice(fields.tool_choice, fields)) return *field_error;
  }
  add_instructions(fields, fields.instructions);
  InputReader reader(fields, store, id_base);
  if (FieldError field_error = reader.read_previous()) return *field_error;
  if (!fields.input_value.is_missing()) {
    if (FieldError field_error = reader.read(fields.input_value)) return *field_error;
  }
  reader.finish();
  if (FieldError field_error = check_relations(fields)) return *field_error;
  if (fields.compaction != Compaction::kNone) ask_for_summary(fields);
  fields.echo = echo_fields(document.object());
  return ResponsesRequest(std::move(fields));
}

}  // namespace

ApiResult<ResponsesRequest> parse_responses_request(const std::string& body, const openai::RequestLimits& limits,
                                                    const ResponseStore& store, std::string_view id_base,
                                                    Compaction compaction) {
  Document document;
  if (FieldError field_error = document.parse(body)) return *field_error;
  return read_request(document, limits, store, id_base, compaction);
}

std::optional<ApiResult<openai::ChatRequest>> parse_chat_of_items(const std::string& body,
                                                                  const openai::RequestLimits& limits) {
  static const ResponseStore none(0);
  Document document;
  if (document.parse(body)) return std::nullopt;
  const JsonObject object = document.object();
  const Json input = object["input"];
  if (!object["messages"].is_missing() || (!input.is_array() && !input.is_string())) return std::nullopt;
  auto parsed = read_request(document, limits, none, {}, Compaction::kNone);
  if (parsed.has_error()) return parsed.error();
  if (parsed->compaction != Compaction::kNone) {
    return bad_request("input", "input: a compaction_trigger asks for what only /v1/responses gives");
  }
  if (parsed->background) {
    return bad_request("background", "background: only /v1/responses has responses in the background");
  }
  parsed->include_usage = object["stream_options"]["include_usage"].is_true();
  return openai::ChatRequest(*std::move(parsed));
}

}  // namespace millrace::server::responses
