#include "text/chat_template/call_ids.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "text/chat_template/call_messages.h"

namespace millrace::text {
namespace {

using jinja::Heap;
using jinja::Kind;
using jinja::Value;

constexpr size_t kLength = 9;
constexpr std::string_view kTaken = "call12345";
constexpr std::string_view kShort = "c1";
constexpr std::string_view kName = "probe_call";
constexpr std::string_view kLong = "call_0123456789abcdef";
/// The forms of a call's message that templates may want.
constexpr const char* kContents[] = {R"("content":"",)", R"("content":null,)", ""};
constexpr const char* kArguments[] = {R"({"key":"value"})", R"("{\"key\": \"value\"}")"};

/// Returns what the template makes of a call with this id, in the first form that it renders.
std::optional<std::string> rendered(const MessageShapes::Render& render, std::string_view id) {
  for (const char* content : kContents) {
    for (const char* arguments : kArguments) {
      const std::string messages = fmt::format(
          R"([{{"role":"user","content":"probe question"}},{{"role":"assistant",{}"tool_calls":[{{"id":"{}",)"
          R"("type":"function",)"
          R"("function":{{"name":"probe_call","arguments":{}}}}}]}},)"
          R"({{"role":"tool","tool_call_id":"{}","name":"probe_reply","content":"probe result"}}])",
          content, id, arguments, id);
      for (const bool as_parts : {false, true}) {
        if (auto text = render(messages, as_parts)) return text;
      }
    }
  }
  return std::nullopt;
}

/// Replaces the member `name` of `object` if it is an id of another form. Longer ids stay where `takes_longer`.
void adapt_member(jinja::DictObject& object, std::string_view name, bool takes_longer, Heap& heap) {
  constexpr std::string_view kDigits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  const Value* id = object.find(name);
  if (id == nullptr || !id->is(Kind::kString)) return;
  const std::string& text = id->string();
  if (takes_longer && text.size() >= kLength) return;
  const bool is_taken =
      text.size() == kLength && std::ranges::all_of(text, [](unsigned char c) { return std::isalnum(c) != 0; });
  if (is_taken) return;
  uint64_t value = hash_bytes(std::as_bytes(std::span(text)));
  std::string nine;
  for (; nine.size() < kLength; value /= kDigits.size()) nine += kDigits[value % kDigits.size()];
  object.set(heap.string(std::string(name)), heap.string(std::move(nine)));
}

/// Returns the name of the function that a call names; null where there is none.
const Value* function_name(const Value& call) {
  const Value* function = call.entries().find("function");
  return function == nullptr ? nullptr : text_member(*function, "name");
}

/// Gives each call an id that holds its function's name, and each result the id of its call.
void put_names_into_ids(const Value& messages, Heap& heap) {
  std::map<std::string, Value> renamed;  // of the calls so far, by the id that the client sent
  size_t count = 0;
  for (const Value& message : messages.items()) {
    const Value* result_id = is_result(message) ? text_member(message, "tool_call_id") : nullptr;
    if (result_id != nullptr) {
      const auto found = renamed.find(result_id->string());
      if (found != renamed.end()) message.entries().set(heap.string("tool_call_id"), found->second);
    }
    const std::vector<Value>* calls = calls_of(message);
    if (calls == nullptr) continue;
    for (const Value& call : *calls) {
      const size_t index = count++;
      const Value* name = function_name(call);
      const Value* id = text_member(call, "id");
      if (name == nullptr || (id != nullptr && id->string().find(name->string()) != std::string::npos)) continue;
      const Value made = heap.string(fmt::format("functions.{}:{}", name->string(), index));
      if (id != nullptr) renamed.insert_or_assign(id->string(), made);
      call.entries().set(heap.string("id"), made);
    }
  }
}

}  // namespace

CallIds CallIds::probe(const MessageShapes::Render& render) {
  CallIds ids;
  const auto taken = rendered(render, kTaken);
  if (!taken) return ids;
  ids.are_nine_bytes_ = !rendered(render, kLong);
  ids.are_nine_bytes_at_least_ = !ids.are_nine_bytes_ && !rendered(render, kShort);
  ids.are_names_ =
      !ids.are_nine_bytes_ && taken->find(kTaken) != std::string::npos && taken->find(kName) == std::string::npos;
  return ids;
}

void CallIds::adapt(const Value& messages, Heap& heap) const {
  if (!messages.is(Kind::kList)) return;
  if (are_names_) put_names_into_ids(messages, heap);
  if (are_nine_bytes_ || are_nine_bytes_at_least_) adapt_length(messages, heap);
}

void CallIds::adapt_length(const Value& messages, Heap& heap) const {
  for (const Value& message : messages.items()) {
    if (!message.is(Kind::kDict)) continue;
    adapt_member(message.entries(), "tool_call_id", are_nine_bytes_at_least_, heap);
    const std::vector<Value>* calls = calls_of(message);
    if (calls == nullptr) continue;
    for (const Value& call : *calls) adapt_member(call.entries(), "id", are_nine_bytes_at_least_, heap);
  }
}

}  // namespace millrace::text
