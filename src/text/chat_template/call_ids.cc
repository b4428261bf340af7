#include "text/chat_template/call_ids.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <span>
#include <string_view>

#include "base/hash.h"

namespace millrace::text {
namespace {

using jinja::Heap;
using jinja::Kind;
using jinja::Value;

constexpr size_t kLength = 9;
constexpr std::string_view kTaken = "call12345";
constexpr std::string_view kLong = "call_0123456789abcdef";
/// The forms of a call's message that templates may want.
constexpr const char* kContents[] = {R"("content":"",)", R"("content":null,)", ""};
constexpr const char* kArguments[] = {R"({"key":"value"})", R"("{\"key\": \"value\"}")"};

/// Returns whether the template renders a call with this id in any form.
bool renders(const MessageShapes::Render& render, std::string_view id) {
  for (const char* content : kContents) {
    for (const char* arguments : kArguments) {
      const std::string messages = fmt::format(
          R"([{{"role":"user","content":"probe question"}},{{"role":"assistant",{}"tool_calls":[{{"id":"{}",)"
          R"("type":"function",)"
          R"("function":{{"name":"probe_call","arguments":{}}}}}]}},)"
          R"({{"role":"tool","tool_call_id":"{}","name":"probe_call","content":"probe result"}}])",
          content, id, arguments, id);
      if (render(messages, false) || render(messages, true)) return true;
    }
  }
  return false;
}

/// Replaces the member `name` of `object` if it is an id of another form.
void adapt_member(jinja::DictObject& object, std::string_view name, Heap& heap) {
  constexpr std::string_view kDigits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  const Value* id = object.find(name);
  if (id == nullptr || !id->is(Kind::kString)) return;
  const std::string& text = id->string();
  const bool is_taken =
      text.size() == kLength && std::ranges::all_of(text, [](unsigned char c) { return std::isalnum(c) != 0; });
  if (is_taken) return;
  uint64_t value = hash_bytes(std::as_bytes(std::span(text)));
  std::string nine;
  for (; nine.size() < kLength; value /= kDigits.size()) nine += kDigits[value % kDigits.size()];
  object.set(heap.string(std::string(name)), heap.string(std::move(nine)));
}

}  // namespace

CallIds CallIds::probe(const MessageShapes::Render& render) {
  CallIds ids;
  ids.are_nine_bytes_ = !renders(render, kLong) && renders(render, kTaken);
  return ids;
}

void CallIds::adapt(const Value& messages, Heap& heap) const {
  if (!are_nine_bytes_ || !messages.is(Kind::kList)) return;
  for (const Value& message : messages.items()) {
    if (!message.is(Kind::kDict)) continue;
    adapt_member(message.entries(), "tool_call_id", heap);
    const Value* calls = message.entries().find("tool_calls");
    if (calls == nullptr || !calls->is(Kind::kList)) continue;
    for (const Value& call : calls->items()) {
      if (call.is(Kind::kDict)) adapt_member(call.entries(), "id", heap);
    }
  }
}

}  // namespace millrace::text
