#include "text/chat_template/tool_results.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "text/chat_template/call_messages.h"

namespace millrace::text {
using jinja::Heap;
using jinja::Kind;
using jinja::Value;

ToolResults ToolResults::probe(const MessageShapes::Render& render) {
  ToolResults found;
  for (const bool has_names : {false, true}) {
    const auto in_order = CallProbe{.has_names = has_names}.rendered(render);
    if (!in_order) continue;
    found.are_in_order_ = CallProbe{.has_names = has_names, .are_ids_swapped = true}.rendered(render) == in_order;
    break;
  }
  const bool takes_calls = CallProbe{.calls = 1, .has_names = true}.rendered(render).has_value();
  found.needs_ids_ = takes_calls && !CallProbe{.calls = 1, .has_ids = false, .has_names = true}.rendered(render);
  found.needs_names_ = takes_calls && !CallProbe{.calls = 1}.rendered(render);
  return found;
}

void ToolResults::adapt(const Value& messages, Heap& heap) const {
  if (!messages.is(Kind::kList) || (!are_in_order_ && !needs_ids_ && !needs_names_)) return;
  std::vector<Value>& items = messages.items();
  size_t made_ids = 0;
  for (size_t at = 0; at < items.size(); ++at) {
    const std::vector<Value>* calls = calls_of(items[at]);
    if (calls == nullptr) continue;
    if (needs_ids_) add_ids(*calls, made_ids, heap);
    size_t end = at + 1;
    while (end < items.size() && is_result(items[end])) ++end;
    adapt_run(items, {.calls = *calls, .begin = at + 1, .end = end}, heap);
  }
}

void ToolResults::add_ids(const std::vector<Value>& calls, size_t& count, Heap& heap) const {
  for (const Value& each : calls) {
    if (text_member(each, "id") != nullptr) continue;
    each.entries().set(heap.string("id"), heap.string(fmt::format("call{:05}", ++count)));
  }
}

void ToolResults::adapt_run(std::vector<Value>& messages, const Run& run, Heap& heap) const {
  std::vector<bool> taken(run.calls.size());
  std::vector<std::optional<size_t>> answered;  // the call of each result
  for (size_t at = run.begin; at < run.end; ++at) {
    answered.push_back(call_named(run.calls, messages[at], taken));
    if (answered.back()) taken[*answered.back()] = true;
  }
  const bool are_all_named = std::ranges::all_of(answered, [](const auto& index) { return index.has_value(); });
  for (size_t i = 0; i < answered.size(); ++i) {
    const Value& message = messages[run.begin + i];
    // A result without an id answers the first call that no other one answers.
    if (!answered[i] && text_member(message, "tool_call_id") == nullptr) {
      const auto next = std::ranges::find(taken, false);
      if (next == taken.end()) continue;
      *next = true;
      answered[i] = static_cast<size_t>(next - taken.begin());
      const Value* id = text_member(run.calls[*answered[i]], "id");
      if (needs_ids_ && id != nullptr) message.entries().set(heap.string("tool_call_id"), *id);
    }
    if (!needs_names_ || !answered[i] || text_member(message, "name") != nullptr) continue;
    const Value* function = run.calls[*answered[i]].entries().find("function");
    const Value* name = function == nullptr ? nullptr : text_member(*function, "name");
    if (name != nullptr) message.entries().set(heap.string("name"), *name);
  }
  if (!are_in_order_ || !are_all_named) return;
  std::vector<std::pair<size_t, Value>> ordered;
  for (size_t i = 0; i < answered.size(); ++i) ordered.emplace_back(*answered[i], messages[run.begin + i]);
  std::ranges::sort(ordered, {}, &std::pair<size_t, Value>::first);
  for (size_t i = 0; i < ordered.size(); ++i) messages[run.begin + i] = ordered[i].second;
}

}  // namespace millrace::text
