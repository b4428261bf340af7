#include "server/openai/response.h"

namespace millrace::server::openai {
namespace {

std::string_view object_name(ResponseKind kind, bool chunk) {
  if (kind == ResponseKind::kCompletion) return "text_completion";
  return chunk ? "chat.completion.chunk" : "chat.completion";
}

void write_head(JsonWriter& json, const ResponseInfo& info, bool chunk) {
  json.member("id", info.id).member("object", object_name(info.kind, chunk)).member("created", info.created_s);
  json.member("model", info.model).member("system_fingerprint", info.fingerprint);
}

void write_token_ids(JsonWriter& json, std::string_view name, std::span<const TokenId> tokens) {
  json.key(name).begin_array();
  for (const TokenId token : tokens) json.value(token);
  json.end_array();
}

void write_finish(JsonWriter& json, const ChoiceDelta& content) {
  json.key("finish_reason");
  if (!content.finish) {
    json.null();
    return;
  }
  const bool calls = content.has_tool_calls && *content.finish == sched::FinishReason::kStop;
  json.value(calls ? "tool_calls" : to_string(*content.finish));
  json.key("stop_reason");
  if (!content.stop_text.empty()) {
    json.value(content.stop_text);
  } else if (content.stop_token) {
    json.value(*content.stop_token);
  } else {
    json.null();
  }
}

void write_logprobs(JsonWriter& json, ResponseKind kind, const ChoiceOptions& options, const ChoiceDelta& content) {
  json.key("logprobs");
  if (!options.logprobs) {
    json.null();
  } else if (kind == ResponseKind::kChat) {
    write_chat_logprobs(json, options, content.logprobs);
  } else {
    write_completion_logprobs(json, options, content.logprobs);
  }
}

void write_calls(JsonWriter& json, const std::vector<ToolCallDelta>& calls, bool chunk) {
  json.key("tool_calls").begin_array();
  for (const ToolCallDelta& call : calls) {
    json.begin_object();
    if (chunk) json.member("index", call.index);
    const std::string_view type = call.is_custom ? "custom" : "function";
    if (!call.id.empty()) json.member("id", call.id).member("type", type);
    json.key(type).begin_object();
    if (!call.name.empty()) json.member("name", call.name);
    json.member(call.is_custom ? "input" : "arguments", call.arguments).end_object().end_object();
  }
  json.end_array();
}

/// Writes reasoning under the names of both conventions.
void write_reasoning(JsonWriter& json, const std::string& reasoning) {
  json.member("reasoning_content", reasoning).member("reasoning", reasoning);
}

void write_message(JsonWriter& json, const ChoiceDelta& content) {
  json.key("message").begin_object().member("role", "assistant").key("content");
  if (content.text.empty() && !content.calls.empty()) {
    json.null();
  } else {
    json.value(content.text);
  }
  json.key("refusal").null();
  if (!content.reasoning.empty()) write_reasoning(json, content.reasoning);
  if (!content.calls.empty()) write_calls(json, content.calls, false);
  json.end_object();
}

void write_choice(JsonWriter& json, const ResponseInfo& info, const ChoiceOptions& options, const ChoiceView& choice) {
  json.begin_object().member("index", choice.index);
  if (info.kind == ResponseKind::kChat) {
    write_message(json, choice.content);
  } else {
    json.member("text", choice.content.text);
  }
  write_logprobs(json, info.kind, options, choice.content);
  write_finish(json, choice.content);
  if (options.prompt_logprobs && info.kind == ResponseKind::kCompletion) {
    json.key("prompt_logprobs");
    write_prompt_logprobs(json, *options.tokenizer, choice.content.prompt_logprobs);
  }
  if (info.token_ids) {
    write_token_ids(json, "token_ids", choice.content.tokens);
    if (info.kind == ResponseKind::kCompletion) write_token_ids(json, "prompt_token_ids", choice.prompt.ids);
  }
  json.end_object();
}

}  // namespace

std::string_view to_string(sched::FinishReason reason) {
  switch (reason) {
    case sched::FinishReason::kStop: return "stop";
    case sched::FinishReason::kLength: return "length";
    case sched::FinishReason::kAbort: break;
  }
  return "abort";
}

void write_usage(JsonWriter& json, const Usage& usage) {
  json.begin_object().member("prompt_tokens", usage.prompt_tokens);
  json.member("completion_tokens", usage.completion_tokens);
  json.member("total_tokens", usage.prompt_tokens + usage.completion_tokens);
  json.key("prompt_tokens_details").begin_object().member("cached_tokens", usage.cached_tokens).end_object();
  if (usage.reasoning_tokens || usage.predictions) {
    json.key("completion_tokens_details").begin_object();
    if (usage.reasoning_tokens) json.member("reasoning_tokens", *usage.reasoning_tokens);
    if (usage.predictions) {
      json.member("accepted_prediction_tokens", usage.predictions->accepted);
      json.member("rejected_prediction_tokens", usage.predictions->rejected);
    }
    json.end_object();
  }
  json.end_object();
}

void CompletionWriter::append_response(std::string& out, std::span<const ChoiceView> choices, const Usage& usage) {
  JsonWriter json(out);
  json.begin_object();
  write_head(json, info_, false);
  json.key("choices").begin_array();
  for (const ChoiceView& choice : choices) write_choice(json, info_, options_, choice);
  json.end_array().key("usage");
  write_usage(json, usage);
  if (info_.kind == ResponseKind::kChat && !choices.empty()) {
    if (options_.prompt_logprobs) {
      json.key("prompt_logprobs");
      write_prompt_logprobs(json, *options_.tokenizer, choices.front().content.prompt_logprobs);
    }
    if (info_.token_ids) write_token_ids(json, "prompt_token_ids", choices.front().prompt.ids);
  }
  json.end_object();
}

CompletionWriter::CompletionWriter(const ResponseInfo& info, const ChoiceOptions& options, ChunkUsage usage)
    : info_(info), options_(options), chunk_usage_(usage) {
  JsonWriter json(head_);
  head_ += "data: ";
  json.begin_object();
  write_head(json, info, true);
  head_ += ",\"choices\":[";
}

void CompletionWriter::append_delta(std::string& out, const ChoiceView& choice, const Usage& usage) {
  const ChoiceDelta& content = choice.content;
  const bool chat = info_.kind == ResponseKind::kChat;
  if (content.first && chat) append_chunk(out, choice, usage, true, false);
  const bool has_content = !content.text.empty() || !content.reasoning.empty() || !content.calls.empty() ||
                           !content.logprobs.empty() || (info_.token_ids && !content.tokens.empty()) ||
                           (content.first && !chat && !content.finish);
  if (has_content) append_chunk(out, choice, usage, false, false);
  if (content.finish) append_chunk(out, choice, usage, false, true);
}

void CompletionWriter::append_chunk(std::string& out, const ChoiceView& choice, const Usage& usage, bool role,
                                    bool finish) const {
  const ChoiceDelta& content = choice.content;
  const bool chat = info_.kind == ResponseKind::kChat;
  const bool bare = role || finish;
  out += head_;
  JsonWriter json(out);
  json.begin_object().member("index", choice.index);
  if (chat) {
    json.key("delta").begin_object();
    if (role) json.member("role", "assistant").member("content", "");
    const bool has_more = !content.reasoning.empty() || !content.calls.empty();
    if (!bare && !content.reasoning.empty()) write_reasoning(json, content.reasoning);
    if (!bare && (!content.text.empty() || !has_more)) json.member("content", content.text);
    if (!bare && !content.calls.empty()) write_calls(json, content.calls, true);
    json.end_object();
  } else {
    json.member("text", bare ? std::string_view() : std::string_view(content.text));
  }
  if (bare) {
    json.key("logprobs").null();
  } else {
    write_logprobs(json, info_.kind, options_, content);
  }
  if (finish) {
    write_finish(json, content);
  } else {
    json.key("finish_reason").null();
  }
  if (info_.token_ids && !bare) write_token_ids(json, "token_ids", content.tokens);
  const bool opens = chat ? role : content.first && !finish;
  const bool has_prompt = info_.token_ids && opens;
  if (has_prompt && !chat) write_token_ids(json, "prompt_token_ids", choice.prompt.ids);
  json.end_object();
  append_tail(out, usage, has_prompt && chat ? choice.prompt.ids : std::span<const TokenId>());
}

void CompletionWriter::append_tail(std::string& out, const Usage& usage, std::span<const TokenId> prompt) const {
  out += ']';
  if (!prompt.empty()) {
    out += ',';
    JsonWriter json(out);
    write_token_ids(json, "prompt_token_ids", prompt);
  }
  if (chunk_usage_.continuous) {
    out += ",\"usage\":";
    JsonWriter json(out);
    write_usage(json, usage);
  } else if (chunk_usage_.at_end) {
    out += ",\"usage\":null";
  }
  out += "}\n\n";
}

void CompletionWriter::append_end(std::string& out, const Usage& usage) {
  if (chunk_usage_.at_end) {
    out += head_;
    out += "],\"usage\":";
    JsonWriter json(out);
    write_usage(json, usage);
    out += "}\n\n";
  }
  out += "data: [DONE]\n\n";
}

void CompletionWriter::append_failure(std::string& out, const ApiError& error) {
  out += "data: ";
  append_error(out, error);
  out += "\n\n";
}

}  // namespace millrace::server::openai
