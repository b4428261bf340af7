#include "server/responses/event_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/responses/compaction.h"

namespace millrace::server::responses {
namespace {

using openai::ChoiceView;
using openai::Usage;

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

/// The words of the events of one kind of item.
struct EventNames {
  std::string_view delta;
  std::string_view done;
  std::string_view text;  ///< the member of `done` that has the whole text
};

EventNames names_of(ItemKind kind) {
  switch (kind) {
    case ItemKind::kMessage: return {"response.output_text.delta", "response.output_text.done", "text"};
    case ItemKind::kReasoning: return {"response.reasoning_text.delta", "response.reasoning_text.done", "text"};
    case ItemKind::kFunctionCall:
      return {"response.function_call_arguments.delta", "response.function_call_arguments.done", "arguments"};
    case ItemKind::kCustomCall:
      return {"response.custom_tool_call_input.delta", "response.custom_tool_call_input.done", "input"};
    case ItemKind::kCompaction: break;
  }
  return {};
}

ResponseStatus status_of(std::optional<sched::FinishReason> finish) {
  if (finish == sched::FinishReason::kLength) return ResponseStatus::kIncomplete;
  if (finish == sched::FinishReason::kAbort) return ResponseStatus::kCancelled;
  return ResponseStatus::kCompleted;
}

bool has_ended(ResponseStatus status) {
  return status != ResponseStatus::kQueued && status != ResponseStatus::kInProgress;
}

}  // namespace

EventWriter::EventWriter(const openai::ResponseInfo& info, const ChoiceOptions& options,
                         std::shared_ptr<const WriterInput> input)
    : info_(info), options_(options), input_(std::move(input)) {}

template <class Write>
void EventWriter::append_event(std::string& out, std::string_view type, Write write) {
  const size_t begin = out.size();
  out += "event: ";
  out += type;
  out += "\ndata: ";
  JsonWriter json(out);
  json.begin_object().member("type", type).member("sequence_number", sequence_number_++);
  write(json);
  json.end_object();
  out += "\n\n";
  if (input_->live != nullptr) {
    input_->live->events.push_back(out.substr(begin));
  } else if (input_->store != nullptr) {
    events_.push_back(out.substr(begin));
  }
}

void EventWriter::append_response_event(std::string& out, std::string_view type, const ResponseState& state) {
  append_event(out, type, [&](JsonWriter& json) {
    json.key("response");
    write_response(json, input_->head, state, info_, options_);
  });
}

void EventWriter::append_item_event(std::string& out, std::string_view type) {
  append_event(out, type, [&](JsonWriter& json) {
    json.member("output_index", items_.size() - 1).key("item");
    write_item(json, items_.back(), options_);
  });
}

void EventWriter::write_position(JsonWriter& json) const {
  json.member("item_id", items_.back().id).member("output_index", items_.size() - 1);
  if (!is_call(items_.back().kind)) json.member("content_index", 0);
}

std::string EventWriter::object_text(const ResponseState& state) const {
  std::string text;
  JsonWriter json(text);
  write_response(json, input_->head, state, info_, options_);
  return text;
}

void EventWriter::publish(const ResponseState& state) {
  LiveResponse* live = input_->live.get();
  if (live != nullptr) live->object = object_text(state);
  if (input_->store == nullptr || !has_ended(state.status)) return;
  StoredResponse stored{.id = info_.id,
                        .object = live != nullptr ? live->object : object_text(state),
                        .input = input_->input,
                        .output = {},
                        .events = live != nullptr ? live->events : std::move(events_),
                        .is_background = input_->is_background};
  for (const OutputItem& item : items_) {
    StoredItem& target = stored.output.emplace_back();
    target.id = item.id;
    JsonWriter json(target.json);
    write_item(json, item, options_);
  }
  input_->store->put(std::move(stored));
}

void EventWriter::append_start(std::string& out, const Usage& /*usage*/) {
  const ResponseState state{.status = ResponseStatus::kInProgress};
  append_response_event(out, "response.created", state);
  append_response_event(out, "response.in_progress", state);
  publish(state);
}

void EventWriter::append_keep_alive(std::string& out) {
  // Some clients end a stream that has comments only.
  append_response_event(out, "response.in_progress", {.status = ResponseStatus::kInProgress});
}

bool EventWriter::is_open(ItemKind kind) const {
  return has_open_item_ && items_.back().kind == kind;
}

std::string EventWriter::next_item_id(ItemKind kind) const {
  return make_item_id(id_prefix(kind), info_.id, items_.size());
}

void EventWriter::append_delta(std::string& out, const ChoiceView& choice, const Usage& usage) {
  const ChoiceDelta& delta = choice.content;
  if (delta.finish) finish_ = delta.finish;
  if (input_->compaction != Compaction::kNone) {
    summary_ += delta.text;
    thoughts_ += delta.reasoning;
    return;
  }
  if (!delta.reasoning.empty()) take_text(out, ItemKind::kReasoning, delta.reasoning);
  // Only a whole response has a usage here. Its reasoning came first.
  const size_t skipped = std::min<size_t>(usage.reasoning_tokens.value_or(0), delta.logprobs.size());
  held_logprobs_.insert(held_logprobs_.end(), delta.logprobs.begin() + static_cast<ptrdiff_t>(skipped),
                        delta.logprobs.end());
  delta.visit_in_order([&](std::string_view text) { take_text(out, ItemKind::kMessage, text); },
                       [&](const ToolCallDelta& call) { take_call(out, call); });
  if (!delta.reasoning.empty() || !delta.calls.empty()) held_logprobs_.clear();
}

void EventWriter::take_text(std::string& out, ItemKind kind, std::string_view text) {
  std::string joined;
  if (kind == ItemKind::kMessage && !is_open(kind)) {
    held_space_ += text;
    if (is_blank(text)) return;
    joined = std::exchange(held_space_, {});
    text = joined;
  }
  std::vector<ScoredToken> logprobs;
  if (kind == ItemKind::kMessage) logprobs = std::exchange(held_logprobs_, {});
  if (!is_open(kind)) open_item(out, {.kind = kind, .id = next_item_id(kind)});
  extend_item(out, text, std::move(logprobs));
}

void EventWriter::take_call(std::string& out, const ToolCallDelta& call) {
  if (open_call_ != call.index) {
    OutputItem item{.kind = ItemKind::kFunctionCall, .call_id = call.id, .name = call.name};
    const auto origin = input_->origins.find(call.name);
    if (origin != input_->origins.end()) {
      item.name = origin->second.name;
      item.name_space = origin->second.name_space;
    }
    if (call.is_custom) item.kind = ItemKind::kCustomCall;
    close_item(out, ItemStatus::kCompleted);
    item.id = next_item_id(item.kind);
    open_item(out, std::move(item));
    open_call_ = call.index;
  }
  if (!call.arguments.empty()) extend_item(out, call.arguments, {});
}

void EventWriter::open_item(std::string& out, OutputItem item) {
  close_item(out, ItemStatus::kCompleted);
  items_.push_back(std::move(item));
  has_open_item_ = true;
  append_item_event(out, "response.output_item.added");
  if (!has_parts(items_.back().kind)) return;
  append_event(out, "response.content_part.added", [&](JsonWriter& json) {
    write_position(json);
    json.key("part");
    write_part(json, items_.back(), {}, options_);
  });
}

void EventWriter::extend_item(std::string& out, std::string_view piece, std::vector<ScoredToken> logprobs) {
  OutputItem& item = items_.back();
  append_event(out, names_of(item.kind).delta, [&](JsonWriter& json) {
    write_position(json);
    json.member("delta", piece);
    if (item.kind == ItemKind::kMessage) write_logprobs(json, logprobs, options_);
  });
  item.text += piece;
  std::ranges::move(logprobs, std::back_inserter(item.logprobs));
}

void EventWriter::close_item(std::string& out, ItemStatus status) {
  if (!std::exchange(has_open_item_, false)) return;
  open_call_.reset();
  OutputItem& item = items_.back();
  const EventNames names = names_of(item.kind);
  append_event(out, names.done, [&](JsonWriter& json) {
    write_position(json);
    if (item.kind == ItemKind::kFunctionCall) json.member("name", item.name);
    json.member(names.text, item.text);
    if (item.kind == ItemKind::kMessage) write_logprobs(json, item.logprobs, options_);
  });
  item.status = status;
  if (has_parts(item.kind)) {
    append_event(out, "response.content_part.done", [&](JsonWriter& json) {
      write_position(json);
      json.key("part");
      write_part(json, item, item.text, options_);
    });
  }
  append_item_event(out, "response.output_item.done");
}

void EventWriter::write_summary(std::string& out) {
  // A model that was cut off while it thought has at least its thoughts.
  const std::string& text = is_blank(summary_) ? thoughts_ : summary_;
  const size_t begin = std::min(text.find_first_not_of(" \t\r\n"), text.size());
  items_.push_back({.kind = ItemKind::kCompaction,
                    .id = next_item_id(ItemKind::kCompaction),
                    .text = seal_summary(std::string_view(text).substr(begin))});
  append_item_event(out, "response.output_item.added");
  items_.back().status = ItemStatus::kCompleted;
  append_item_event(out, "response.output_item.done");
}

void EventWriter::append_end(std::string& out, const Usage& usage) {
  const ResponseStatus status = status_of(finish_);
  const bool is_complete = status == ResponseStatus::kCompleted;
  if (input_->compaction != Compaction::kNone) write_summary(out);
  if (items_.empty() && !held_space_.empty()) {
    open_item(out, {.kind = ItemKind::kMessage, .id = next_item_id(ItemKind::kMessage)});
    extend_item(out, held_space_, std::exchange(held_logprobs_, {}));
  }
  close_item(out, is_complete ? ItemStatus::kCompleted : ItemStatus::kIncomplete);
  const ResponseState state{.status = status, .output = items_, .usage = &usage};
  append_response_event(out, is_complete ? "response.completed" : "response.incomplete", state);
  publish(state);
}

void EventWriter::append_failure(std::string& out, const openai::ApiError& error) {
  // The open item is in the final object only: its text is no whole output.
  if (std::exchange(has_open_item_, false)) items_.back().status = ItemStatus::kIncomplete;
  const ResponseState state{.status = ResponseStatus::kFailed, .output = items_, .error = &error};
  append_response_event(out, "response.failed", state);
  publish(state);
}

void EventWriter::append_response(std::string& out, std::span<const ChoiceView> choices, const Usage& usage) {
  // The items of a whole response are those of a stream of one delta.
  std::string events;
  append_start(events, usage);
  for (const ChoiceView& choice : choices) append_delta(events, choice, usage);
  append_end(events, usage);
  const ResponseState state{.status = status_of(finish_), .output = items_, .usage = &usage};
  if (input_->compaction == Compaction::kObject) {
    JsonWriter json(out);
    write_compaction(json, input_->input, state, info_, options_);
  } else {
    out += object_text(state);
  }
}

}  // namespace millrace::server::responses
