#include "text/chat_template/system_messages.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace millrace::text {
namespace {

using jinja::Heap;
using jinja::Kind;
using jinja::Value;

constexpr std::string_view kRule = "probe rule";
constexpr std::string_view kNote = "probe note";
constexpr std::string_view kQuestion = "probe question";

bool is_system(const Value& message) {
  const Value* role = message.is(Kind::kDict) ? message.entries().find("role") : nullptr;
  return role != nullptr && role->is(Kind::kString) && role->string() == "system";
}

/// Returns the message's text; null where it has none.
const Value* text_of(const Value& message) {
  const Value* content = message.entries().find("content");
  return content != nullptr && content->is(Kind::kString) ? content : nullptr;
}

/// Returns whether `text` has all of `parts` in their order.
bool has_in_order(const std::optional<std::string>& text, std::initializer_list<std::string_view> parts) {
  if (!text) return false;
  size_t at = 0;
  for (const std::string_view part : parts) {
    at = text->find(part, at);
    if (at == std::string::npos) return false;
    at += part.size();
  }
  return true;
}

}  // namespace

SystemMessages SystemMessages::probe(const MessageShapes::Render& render) {
  const std::string rule = R"({"role":"system","content":"probe rule"})";
  const std::string note = R"({"role":"system","content":"probe note"})";
  const std::string question = R"({"role":"user","content":"probe question"})";
  const std::string answer = R"({"role":"assistant","content":"probe answer"})";
  const auto shows = [&](const std::string& messages, std::initializer_list<std::string_view> parts) {
    return has_in_order(render('[' + messages + ']', false), parts) ||
           has_in_order(render('[' + messages + ']', true), parts);
  };
  SystemMessages found;
  // A template without system messages takes them nowhere.
  if (!shows(rule + ',' + question, {kRule, kQuestion})) return found;
  found.at_start_only_ = !shows(rule + ',' + question + ',' + note, {kRule, kQuestion, kNote}) ||
                         !shows(question + ',' + note + ',' + answer + ',' + question, {kQuestion, kNote, kQuestion});
  found.one_only_ = !shows(rule + ',' + note + ',' + question, {kRule, kNote, kQuestion});
  return found;
}

void SystemMessages::adapt(const Value& messages, Heap& heap) const {
  if (!messages.is(Kind::kList) || messages.items().empty() || (!at_start_only_ && !one_only_)) return;
  std::vector<Value>& items = messages.items();
  const auto start_end = std::ranges::find_if_not(items, is_system);
  const auto start_count = start_end - items.begin();
  const auto is_moved = [&](const Value& message) {
    const bool is_at_start = &message - items.data() < start_count;
    return is_system(message) && (at_start_only_ || is_at_start);
  };
  std::string joined;
  size_t count = 0;
  for (const Value& message : items) {
    if (!is_moved(message)) continue;
    const Value* text = text_of(message);
    if (text == nullptr) return;
    if (count++ > 0) joined += '\n';
    joined += text->string();
  }
  const bool is_at_start = count == static_cast<size_t>(start_count);
  if (is_at_start && (count <= 1 || !one_only_)) return;
  auto* first = heap.make<jinja::DictObject>(heap);
  first->set(heap.string("role"), heap.string("system"));
  first->set(heap.string("content"), heap.string(std::move(joined)));
  std::vector<Value> moved = {Value::dict(first)};
  for (const Value& message : items) {
    if (!is_moved(message)) moved.push_back(message);
  }
  items = std::move(moved);
}

}  // namespace millrace::text
