#include "server/messages/message_writer.h"

#include "server/messages/error.h"
#include "server/messages/message_members.h"

namespace millrace::server::messages {
namespace {

/// Appends one event. `write` adds its members after the type.
template <class Write>
void append_event(std::string& out, std::string_view type, Write write) {
  out += "event: ";
  out += type;
  out += "\ndata: ";
  JsonWriter json(out);
  json.begin_object().member("type", type);
  write(json);
  json.end_object();
  out += "\n\n";
}

void write_head(JsonWriter& json, const openai::ResponseInfo& info) {
  json.member("id", info.id).member("type", "message").member("role", "assistant").member("model", info.model);
}

void write_text(JsonWriter& json, std::string_view text) {
  json.begin_object().member("type", "text").member("text", text).end_object();
}

void write_content(JsonWriter& json, const ChoiceDelta& content) {
  json.key("content").begin_array();
  if (!content.reasoning.empty()) {
    json.begin_object().member("type", "thinking").member("thinking", content.reasoning);
    json.member("signature", kSignature).end_object();
  }
  const bool is_empty = content.reasoning.empty() && content.calls.empty() && content.text.empty();
  if (is_empty) write_text(json, "");
  content.visit_in_order([&json](std::string_view text) { write_text(json, text); },
                         [&json](const ToolCallDelta& call) {
                           json.begin_object().member("type", "tool_use").member("id", tool_use_id(call.id));
                           json.member("name", call.name).key("input").raw(tool_input(call.arguments)).end_object();
                         });
  json.end_array();
}

}  // namespace

void MessageWriter::append_start(std::string& out, const openai::Usage& usage) {
  append_event(out, "message_start", [&](JsonWriter& json) {
    json.key("message").begin_object();
    write_head(json, info_);
    json.key("content").begin_array().end_array().key("stop_reason").null().key("stop_sequence").null().key("usage");
    // No block has been sent yet.
    openai::Usage prompt = usage;
    prompt.completion_tokens = 0;
    prompt.reasoning_tokens.reset();
    write_usage(json, prompt);
    json.end_object();
  });
  append_keep_alive(out);
}

void MessageWriter::append_keep_alive(std::string& out) {
  append_event(out, "ping", [](JsonWriter&) {});
}

void MessageWriter::append_delta(std::string& out, const openai::ChoiceView& choice, const openai::Usage& /*usage*/) {
  const ChoiceDelta& content = choice.content;
  if (!content.reasoning.empty()) {
    open_block(out, BlockKind::kThinking);
    append_piece(out, "thinking_delta", "thinking", content.reasoning);
  }
  content.visit_in_order(
      [&](std::string_view text) {
        open_block(out, BlockKind::kText);
        append_piece(out, "text_delta", "text", text);
      },
      [&](const ToolCallDelta& call) { append_call(out, call); });
  if (!content.finish) return;
  ending_.finish = content.finish;
  ending_.has_tool_calls = content.has_tool_calls;
  ending_.has_open_call = content.has_open_call;
  ending_.stop_text = content.stop_text;
}

void MessageWriter::append_call(std::string& out, const ToolCallDelta& call) {
  if (open_ != BlockKind::kToolUse || call.index != call_index_) open_block(out, BlockKind::kToolUse, &call);
  if (call.arguments.empty()) return;
  append_piece(out, "input_json_delta", "partial_json", call.arguments);
  call_is_empty_ = false;
}

void MessageWriter::open_block(std::string& out, BlockKind kind, const ToolCallDelta* call) {
  if (open_ == kind && call == nullptr) return;
  close_block(out);
  open_ = kind;
  append_event(out, "content_block_start", [&](JsonWriter& json) {
    json.member("index", index_).key("content_block");
    if (kind == BlockKind::kText) {
      write_text(json, "");
    } else if (kind == BlockKind::kThinking) {
      json.begin_object().member("type", "thinking").member("thinking", "").member("signature", "").end_object();
    } else {
      json.begin_object().member("type", "tool_use").member("id", tool_use_id(call->id)).member("name", call->name);
      json.key("input").begin_object().end_object().end_object();
    }
  });
  if (call == nullptr) return;
  call_index_ = call->index;
  call_is_empty_ = true;
}

void MessageWriter::close_block(std::string& out) {
  if (!open_) return;
  if (open_ == BlockKind::kThinking) append_piece(out, "signature_delta", "signature", kSignature);
  if (open_ == BlockKind::kToolUse && call_is_empty_) append_piece(out, "input_json_delta", "partial_json", "{}");
  append_event(out, "content_block_stop", [this](JsonWriter& json) { json.member("index", index_); });
  ++index_;
  open_.reset();
}

void MessageWriter::append_piece(std::string& out, std::string_view type, std::string_view member,
                                 std::string_view text) const {
  append_event(out, "content_block_delta", [&](JsonWriter& json) {
    json.member("index", index_).key("delta").begin_object().member("type", type).member(member, text).end_object();
  });
}

void MessageWriter::append_end(std::string& out, const openai::Usage& usage) {
  if (!open_ && index_ == 0) open_block(out, BlockKind::kText);
  close_block(out);
  append_event(out, "message_delta", [&](JsonWriter& json) {
    json.key("delta").begin_object();
    write_stop(json, ending_, usage, max_tokens_);
    json.end_object().key("usage");
    write_usage(json, usage);
  });
  append_event(out, "message_stop", [](JsonWriter&) {});
}

void MessageWriter::append_failure(std::string& out, const openai::ApiError& error) {
  out += "event: error\ndata: ";
  messages::append_error(out, error);
  out += "\n\n";
}

void MessageWriter::append_response(std::string& out, std::span<const openai::ChoiceView> choices,
                                    const openai::Usage& usage) {
  const ChoiceDelta& content = choices.front().content;
  JsonWriter json(out);
  json.begin_object();
  write_head(json, info_);
  write_content(json, content);
  write_stop(json, content, usage, max_tokens_);
  json.key("usage");
  write_usage(json, usage);
  json.end_object();
}

}  // namespace millrace::server::messages
