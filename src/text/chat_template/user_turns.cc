#include "text/chat_template/user_turns.h"

#include <string_view>
#include <utility>
#include <vector>

namespace millrace::text {
namespace {

using jinja::Heap;
using jinja::Kind;
using jinja::Value;

constexpr std::string_view kTask = "probe task";
constexpr std::string_view kDetail = "probe detail";

/// Returns the text of a message of the user that has no other member; null for any other message.
const Value* user_text(const Value& message) {
  if (!message.is(Kind::kDict) || message.entries().entries.size() != 2) return nullptr;
  const Value* role = message.entries().find("role");
  const Value* content = message.entries().find("content");
  const bool is_plain = role != nullptr && content != nullptr && role->is(Kind::kString) && content->is(Kind::kString);
  return is_plain && role->string() == "user" ? content : nullptr;
}

}  // namespace

UserTurns UserTurns::probe(const MessageShapes::Render& render) {
  const std::string task = R"({"role":"user","content":"probe task"})";
  const std::string detail = R"({"role":"user","content":"probe detail"})";
  const std::string answer = R"({"role":"assistant","content":"done"})";
  const auto shows_both = [&](const std::string& messages) {
    for (const bool as_parts : {false, true}) {
      const auto text = render('[' + messages + ']', as_parts);
      const size_t at = text ? text->find(kTask) : std::string::npos;
      if (at != std::string::npos && text->find(kDetail, at) != std::string::npos) return true;
    }
    return false;
  };
  UserTurns found;
  // A template that shows no earlier message at all gains nothing.
  if (!shows_both(task + ',' + answer + ',' + detail)) return found;
  found.are_joined_ = !shows_both(task + ',' + detail) ||
                      !shows_both(task + ',' + answer + ',' + task + ',' + detail) ||
                      !shows_both(task + ',' + detail + ',' + answer + ',' + task);
  return found;
}

void UserTurns::adapt(const Value& messages, Heap& heap) const {
  if (!are_joined_ || !messages.is(Kind::kList)) return;
  std::vector<Value> joined;
  const Value* last_text = nullptr;  // of the last message in `joined`, if its neighbour may join it
  for (const Value& message : messages.items()) {
    const Value* text = user_text(message);
    if (text != nullptr && last_text != nullptr) {
      auto* both = heap.make<jinja::DictObject>(heap);
      both->set(heap.string("role"), heap.string("user"));
      both->set(heap.string("content"), heap.string(last_text->string() + "\n\n" + text->string()));
      joined.back() = Value::dict(both);
    } else {
      joined.push_back(message);
    }
    last_text = text == nullptr ? nullptr : user_text(joined.back());
  }
  messages.items() = std::move(joined);
}

}  // namespace millrace::text
