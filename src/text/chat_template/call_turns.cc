#include "text/chat_template/call_turns.h"

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "text/chat_template/call_messages.h"

namespace millrace::text {
namespace {

using jinja::DictObject;
using jinja::Heap;
using jinja::Value;

constexpr std::string_view kRemark = "probe remark";

bool shows(const std::optional<std::string>& text, std::initializer_list<std::string_view> parts) {
  if (!text) return false;
  for (const std::string_view part : parts) {
    if (text->find(part) == std::string::npos) return false;
  }
  return true;
}

/// Returns a copy of a message with another value of one member.
Value with(const Value& message, std::string_view name, const Value& value, Heap& heap) {
  auto* copy = heap.make<DictObject>(heap);
  for (const auto& [key, member] : message.entries().entries) copy->set(key, member);
  copy->set(heap.string(std::string(name)), value);
  return Value::dict(copy);
}

}  // namespace

CallTurns CallTurns::probe(const MessageShapes::Render& render) {
  CallTurns found;
  const auto names = {CallProbe::kFirstName, CallProbe::kSecondName, CallProbe::kFirstResult, CallProbe::kSecondResult};
  for (const bool has_names : {false, true}) {
    if (shows(CallProbe{.has_names = has_names}.rendered(render), names)) break;
    const CallProbe apart{.are_apart = true, .has_names = has_names};
    found.takes_one_call_ = found.takes_one_call_ || shows(apart.rendered(render), names);
  }
  const CallProbe together{.calls = 1, .has_names = true, .text = kRemark};
  const CallProbe apart{.calls = 1, .has_names = true, .text = kRemark, .is_text_apart = true};
  // A template that leaves out the text only shows what the model was trained on.
  found.takes_no_text_ = !shows(together.rendered(render), {CallProbe::kFirstName}) &&
                         shows(apart.rendered(render), {CallProbe::kFirstName, kRemark});
  return found;
}

void CallTurns::adapt(const Value& messages, Heap& heap) const {
  if (!messages.is(jinja::Kind::kList) || (!takes_one_call_ && !takes_no_text_)) return;
  const std::vector<Value> items = std::move(messages.items());
  std::vector<Value> divided;
  for (size_t at = 0; at < items.size(); ++at) {
    Value message = items[at];
    const std::vector<Value>* calls = calls_of(message);
    if (calls != nullptr && takes_no_text_ && text_member(message, "content") != nullptr) {
      auto* remark = heap.make<DictObject>(heap);
      for (const auto& [key, member] : message.entries().entries) {
        if (key.string() != "tool_calls") remark->set(key, member);
      }
      divided.push_back(Value::dict(remark));
      message = with(message, "content", heap.string(""), heap);
    }
    if (calls == nullptr || calls->size() == 1 || !takes_one_call_) {
      divided.push_back(message);
      continue;
    }
    std::vector<Value> results;
    while (at + 1 < items.size() && is_result(items[at + 1])) results.push_back(items[++at]);
    divide(message, results, divided, heap);
  }
  messages.items() = std::move(divided);
}

void CallTurns::divide(const Value& message, const std::vector<Value>& results, std::vector<Value>& divided,
                       Heap& heap) {
  const std::vector<Value>& calls = *calls_of(message);
  std::vector<bool> taken(calls.size());
  std::vector<std::vector<Value>> answers(calls.size());
  std::vector<Value> others;
  for (const Value& result : results) {
    const auto index = call_named(calls, result, taken);
    if (index) taken[*index] = true;
    (index ? answers[*index] : others).push_back(result);
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    const Value one = heap.list({calls[i]});
    Value part = with(message, "tool_calls", one, heap);
    if (i > 0) part = with(part, "content", heap.string(""), heap);
    divided.push_back(part);
    // A result that names no call follows the first one that has none.
    if (answers[i].empty() && !others.empty()) {
      answers[i].push_back(others.front());
      others.erase(others.begin());
    }
    divided.insert(divided.end(), answers[i].begin(), answers[i].end());
  }
  divided.insert(divided.end(), others.begin(), others.end());
}

}  // namespace millrace::text
