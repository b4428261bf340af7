#include "text/chat_template/message_shapes.h"

#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

#include "text/chat_template/partial_json.h"
#include "text/chat_template/jinja_builtins.h"
#include "text/chat_template/jinja_json.h"

namespace millrace::text {
namespace {

using jinja::DictObject;
using jinja::Heap;
using jinja::Kind;
using jinja::Value;

constexpr std::array kForms = {NoContent::kEmpty, NoContent::kNull, NoContent::kAbsent};
constexpr std::string_view kCallName = "probe_call";
constexpr std::string_view kArgument = "probe value";
constexpr std::string_view kArgumentsObject = R"({"probe_key": "probe value"})";
constexpr std::string_view kArgumentsText = R"("{\"probe_key\": \"probe value\"}")";
constexpr std::string_view kArgumentsCutOff = R"("{\"probe_key\": \"probe value\", \"pro")";
/// Texts that stand for texts that stand for an object, at most.
constexpr int kMaxEncodings = 4;

constexpr std::string_view kUserText = "probe question";
constexpr std::string_view kUser = R"({"role":"user","content":"probe question"})";
constexpr std::string_view kAnswer = R"({"role":"assistant","content":"probe answer"})";

std::string_view render_content_member(NoContent form) {
  switch (form) {
    case NoContent::kEmpty: return R"(,"content":"")";
    case NoContent::kNull: return R"(,"content":null)";
    case NoContent::kAbsent: break;
  }
  return {};
}

std::string joined(std::initializer_list<std::string_view> parts) {
  std::string text;
  for (const std::string_view part : parts) text += part;
  return text;
}

std::string caller(NoContent form, std::string_view arguments) {
  return joined({R"({"role":"assistant")", render_content_member(form),
                 R"(,"tool_calls":[{"id":"call12345","type":"function","function":{"name":"probe_call","arguments":)",
                 arguments, "}}]}"});
}

std::string tool_result(std::string_view content) {
  return joined({R"({"role":"tool","tool_call_id":"call12345","name":"probe_call")", content, "}"});
}

std::string conversation(std::initializer_list<std::string_view> messages) {
  std::string text = "[";
  for (const std::string_view message : messages) {
    if (text.size() > 1) text += ',';
    text += message;
  }
  return text + ']';
}

size_t count_of(std::string_view text, std::string_view word) {
  size_t count = 0;
  for (size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + word.size())) ++count;
  return count;
}

bool has(const std::optional<std::string>& text, std::string_view part) {
  return text && text->find(part) != std::string::npos;
}

/// How well a template renders one form: not at all, with a loss, or well.
enum class Grade : uint8_t { kFails, kLoses, kGood };

using Renderings = std::array<std::optional<std::string>, kNoContentKinds>;

std::array<Grade, kNoContentKinds> grade_renderings(const Renderings& renderings, bool has_calls) {
  size_t fewest_none = std::string::npos;
  for (const auto& text : renderings) {
    if (text) fewest_none = std::min(fewest_none, count_of(*text, "None"));
  }
  std::array<Grade, kNoContentKinds> result{};
  for (size_t i = 0; i < kNoContentKinds; ++i) {
    if (!renderings[i]) continue;
    const bool is_complete = !has_calls || has(renderings[i], kCallName);
    result[i] = is_complete && count_of(*renderings[i], "None") == fewest_none ? Grade::kGood : Grade::kLoses;
  }
  return result;
}

/// Returns the value of a text in JSON; an absent one where it is no JSON.
Value parse_arguments(std::string_view text, Heap& heap) {
  // A byte-order mark does not stand within a text.
  if (text.starts_with("\xEF\xBB\xBF")) return Value::absent();
  try {
    return jinja::parse_json(text, "arguments", heap);
  } catch (const jinja::TemplateError&) {
    return Value::absent();
  }
}

Value empty_object(Heap& heap) {
  return Value::dict(heap.make<DictObject>(heap));
}

/// Returns an object that keeps the text of arguments that are no JSON object.
Value wrapped(const std::string& text, Heap& heap) {
  if (const auto closed = complete_partial_json(text)) {
    const Value object = parse_arguments(*closed, heap);
    if (object.is(Kind::kDict) && !object.entries().entries.empty()) return object;
  }
  auto* dict = heap.make<DictObject>(heap);
  dict->set(heap.string("arguments"), heap.string(text));
  return Value::dict(dict);
}

/// Returns the result of a call, as the member of the calling message that has its name. The call is the one with the
/// result's id, else the one at `index`.
Value response_of(const DictObject& result, const DictObject& calling, size_t index, Heap& heap) {
  const std::vector<Value>& calls = calling.find("tool_calls")->items();
  const Value* id = result.find("tool_call_id");
  const auto has_id = [id](const Value& call) {
    const Value* own = call.is(Kind::kDict) ? call.entries().find("id") : nullptr;
    return id != nullptr && own != nullptr && own->is(Kind::kString) && id->is(Kind::kString) &&
           own->string() == id->string();
  };
  auto call = std::ranges::find_if(calls, has_id);
  if (call == calls.end()) call = calls.begin() + static_cast<ptrdiff_t>(std::min(index, calls.size() - 1));
  const Value* function = call->is(Kind::kDict) ? call->entries().find("function") : nullptr;
  const Value* name = function != nullptr && function->is(Kind::kDict) ? function->entries().find("name") : nullptr;
  const Value* content = result.find("content");
  Value response = content == nullptr ? heap.string("") : *content;
  if (response.is(Kind::kString)) {
    const Value parsed = parse_arguments(response.string(), heap);
    if (parsed.is(Kind::kDict)) response = parsed;
  }
  auto* made = heap.make<DictObject>(heap);
  if (name != nullptr) made->set(heap.string("name"), *name);
  made->set(heap.string("response"), response);
  return Value::dict(made);
}

std::optional<NoContent> sent_kind(const Value* content) {
  if (content == nullptr) return NoContent::kAbsent;
  if (content->is(Kind::kNone)) return NoContent::kNull;
  const bool is_empty = (content->is(Kind::kString) && content->string().empty()) ||
                        (content->is(Kind::kList) && content->items().empty());
  return is_empty ? std::optional(NoContent::kEmpty) : std::nullopt;
}

}  // namespace

MessageShapes MessageShapes::probe(const Render& render) {
  MessageShapes shapes;
  shapes.probe_parts(render);
  const auto of = [&](Sender sender) -> NoContentMap& { return shapes.content_[static_cast<size_t>(sender)]; };
  of(Sender::kCaller) = shapes.probe_content(render, Sender::kCaller, NoContent::kEmpty);
  const NoContent caller_kind = of(Sender::kCaller)[static_cast<size_t>(NoContent::kEmpty)];
  of(Sender::kAssistant) = shapes.probe_content(render, Sender::kAssistant, caller_kind);
  of(Sender::kTool) = shapes.probe_content(render, Sender::kTool, caller_kind);
  shapes.probe_arguments(render);
  shapes.probe_responses(render);
  return shapes;
}

void MessageShapes::probe_parts(const Render& render) {
  const std::string chat = conversation({kUser});
  const auto parts = render(chat, true);
  // A template that prints an array prints its members' names.
  content_as_parts_ = !has(render(chat, false), kUserText) && has(parts, kUserText) && !has(parts, "{'type'");
}

MessageShapes::NoContentMap MessageShapes::probe_content(const Render& render, Sender sender,
                                                         NoContent caller_kind) const {
  const auto chat = [&](NoContent form, size_t which, std::string_view arguments) -> std::string {
    const std::string_view missing = render_content_member(form);
    const std::string call = caller(sender == Sender::kCaller ? form : caller_kind, arguments);
    const std::string result = tool_result(sender == Sender::kTool ? missing : R"(,"content":"probe result")");
    const std::string answer = joined({R"({"role":"assistant")", missing, "}"});
    if (sender == Sender::kAssistant) {
      return which == 0 ? conversation({kUser, answer, kUser}) : conversation({kUser, answer});
    }
    if (which == 0) return conversation({kUser, call, result, kAnswer, kUser});
    if (which == 1) return conversation({kUser, call, result});
    return sender == Sender::kCaller ? conversation({kUser, call}) : conversation({kUser, call, result, kUser});
  };
  std::array<Grade, kNoContentKinds> worst{Grade::kGood, Grade::kGood, Grade::kGood};
  for (size_t which = 0; which < (sender == Sender::kAssistant ? 2 : 3); ++which) {
    Renderings renderings;
    for (size_t i = 0; i < kNoContentKinds; ++i) {
      renderings[i] = render(chat(kForms[i], which, kArgumentsObject), content_as_parts_);
      if (!renderings[i]) renderings[i] = render(chat(kForms[i], which, kArgumentsText), content_as_parts_);
    }
    const auto found = grade_renderings(renderings, sender == Sender::kCaller);
    // A conversation that no form makes renderable tells nothing.
    if (std::ranges::all_of(found, [](Grade grade) { return grade == Grade::kFails; })) continue;
    for (size_t i = 0; i < kNoContentKinds; ++i) worst[i] = std::min(worst[i], found[i]);
  }
  NoContentMap forms{};
  for (size_t sent = 0; sent < kNoContentKinds; ++sent) {
    // The shape that was sent goes first; most templates take an empty text.
    size_t best = sent;
    for (size_t i = 0; i < kNoContentKinds; ++i) {
      if (worst[i] > worst[best]) best = i;
    }
    forms[sent] = kForms[best];
  }
  return forms;
}

void MessageShapes::probe_arguments(const Render& render) {
  const NoContent form = content_[static_cast<size_t>(Sender::kCaller)][static_cast<size_t>(NoContent::kNull)];
  const auto rendered = [&](std::string_view arguments) {
    const std::string call = caller(form, arguments);
    const std::string result = tool_result(R"(,"content":"probe result")");
    auto text = render(conversation({kUser, call, result, kAnswer, kUser}), content_as_parts_);
    return text ? text : render(conversation({kUser, call}), content_as_parts_);
  };
  const auto object = rendered(kArgumentsObject);
  const auto text = rendered(kArgumentsText);
  const bool shows_object = has(object, kArgument) && !has(object, "{'probe_key'");
  // A template that shows no arguments at all takes either, unless it fails.
  arguments_as_text_ = (has(text, kArgument) && !shows_object) || (!object && text);
  shows_any_text_ = has(rendered(kArgumentsCutOff), kArgument);
}

void MessageShapes::probe_responses(const Render& render) {
  const NoContent form = content_[static_cast<size_t>(Sender::kCaller)][static_cast<size_t>(NoContent::kNull)];
  const std::string call = caller(form, arguments_as_text_ ? kArgumentsText : kArgumentsObject);
  const std::string calling = joined({std::string_view(call).substr(0, call.size() - 1),
                                      R"(,"tool_responses":[{"name":"probe_call","response":"probe result"}]})"});
  const auto as_member = render(conversation({kUser, calling}), content_as_parts_);
  const auto as_message =
      render(conversation({kUser, call, tool_result(R"(,"content":"probe result")")}), content_as_parts_);
  responses_in_call_ = has(as_member, "probe result") && as_member != as_message;
}

MessageShapes MessageShapes::with_no_content(NoContent form) const {
  MessageShapes shapes = *this;
  for (NoContentMap& forms : shapes.content_) forms.fill(form);
  return shapes;
}

bool MessageShapes::adapt(const Value& messages, Heap& heap) const {
  if (!messages.is(Kind::kList)) return false;
  bool some_without_content = false;
  for (const Value& message : messages.items()) {
    if (!message.is(Kind::kDict)) continue;
    some_without_content = adapt_content(message.entries(), heap) || some_without_content;
    adapt_calls(message.entries(), heap);
  }
  if (responses_in_call_) move_responses(messages, heap);
  if (content_as_parts_) split_contents(messages, heap);
  return some_without_content;
}

void MessageShapes::move_responses(const Value& messages, Heap& heap) {
  std::vector<Value> kept;
  DictObject* calling = nullptr;
  std::vector<Value> responses;
  for (const Value& message : messages.items()) {
    const Value* role = message.is(Kind::kDict) ? message.entries().find("role") : nullptr;
    if (calling != nullptr && role != nullptr && role->is(Kind::kString) && role->string() == "tool") {
      responses.push_back(response_of(message.entries(), *calling, responses.size(), heap));
      calling->set(heap.string("tool_responses"), heap.list(responses));
      continue;
    }
    const Value* calls = message.is(Kind::kDict) ? message.entries().find("tool_calls") : nullptr;
    calling = calls != nullptr && calls->is(Kind::kList) && !calls->items().empty() ? &message.entries() : nullptr;
    responses.clear();
    kept.push_back(message);
  }
  messages.items() = std::move(kept);
}

void MessageShapes::split_contents(const Value& messages, Heap& heap) {
  if (!messages.is(Kind::kList)) return;
  for (const Value& message : messages.items()) {
    const Value* content = message.is(Kind::kDict) ? message.entries().find("content") : nullptr;
    if (content == nullptr || !content->is(Kind::kString)) continue;
    auto* part = heap.make<DictObject>(heap);
    part->set(heap.string("type"), heap.string("text"));
    part->set(heap.string("text"), *content);
    message.entries().set(heap.string("content"), heap.list({Value::dict(part)}));
  }
}

bool MessageShapes::adapt_content(DictObject& message, Heap& heap) const {
  const Value* role = message.find("role");
  if (role == nullptr || !role->is(Kind::kString)) return false;
  const bool is_tool = role->string() == "tool";
  if (!is_tool && role->string() != "assistant") return false;
  const Value* content = message.find("content");
  const auto sent = sent_kind(content);
  if (!sent) return false;
  const Value* calls = message.find("tool_calls");
  const bool has_calls = calls != nullptr && jinja::is_true(*calls);
  const Sender sender = is_tool ? Sender::kTool : has_calls ? Sender::kCaller : Sender::kAssistant;
  const NoContent form = content_[static_cast<size_t>(sender)][static_cast<size_t>(*sent)];
  const bool is_list = content != nullptr && content->is(Kind::kList);  // of no parts: an empty text
  if (form == *sent && !is_list) return true;
  const Value key = heap.string("content");
  switch (form) {
    case NoContent::kEmpty: message.set(key, heap.string("")); break;
    case NoContent::kNull: message.set(key, Value()); break;
    case NoContent::kAbsent: message.erase(key); break;
  }
  return true;
}

void MessageShapes::adapt_calls(const DictObject& message, Heap& heap) const {
  const Value* calls = message.find("tool_calls");
  if (calls == nullptr || !calls->is(Kind::kList)) return;
  for (const Value& call : calls->items()) {
    const Value* function = call.is(Kind::kDict) ? call.entries().find("function") : nullptr;
    if (function == nullptr || !function->is(Kind::kDict)) continue;
    DictObject& members = function->entries();
    const Value arguments = adapted_arguments(members.find("arguments"), heap);
    members.set(heap.string("arguments"), arguments);
  }
}

Value MessageShapes::adapted_arguments(const Value* given, Heap& heap) const {
  Value value = given == nullptr ? Value() : *given;
  std::string text;  // that the value was read from
  for (int i = 0; i < kMaxEncodings && value.is(Kind::kString); ++i) {
    text = value.string();
    const bool is_blank = jinja::strip(text, Value::absent(), true, true).empty();
    value = is_blank ? Value() : parse_arguments(text, heap);
  }
  const bool is_empty = value.is(Kind::kNone) || (value.is(Kind::kList) && value.items().empty());
  if (is_empty) {
    value = empty_object(heap);
    text = "{}";
  }
  if (value.is(Kind::kDict)) {
    if (!arguments_as_text_) return value;
    return heap.string(text.empty() ? jinja::dump_json(value, {}) : std::move(text));
  }
  // The value is no object, but what the model wrote is kept.
  if (text.empty()) text = jinja::dump_json(value, {});
  if (shows_any_text_) return heap.string(std::move(text));
  const Value object = wrapped(text, heap);
  return arguments_as_text_ ? heap.string(jinja::dump_json(object, {})) : object;
}

}  // namespace millrace::text
