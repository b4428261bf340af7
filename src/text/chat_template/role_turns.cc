#include "text/chat_template/role_turns.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/chat_template/call_messages.h"

namespace millrace::text {
namespace {

using jinja::Heap;
using jinja::Kind;
using jinja::Value;

/// Returns the text of a message that has a role and no other member; null for any other message.
const Value* plain_text(const Value& message, std::string_view role) {
  if (!message.is(Kind::kDict) || message.entries().entries.size() != 2) return nullptr;
  const Value* own = text_member(message, "role");
  const Value* content = message.entries().find("content");
  const bool is_plain = own != nullptr && content != nullptr && content->is(Kind::kString);
  return is_plain && own->string() == role ? content : nullptr;
}

/// Returns the assistant's message with a text before its own.
Value with_text_before(std::string_view text, const Value& message, Heap& heap) {
  auto* both = heap.make<jinja::DictObject>(heap);
  for (const auto& [key, member] : message.entries().entries) both->set(key, member);
  const Value* own = text_member(message, "content");
  std::string joined(text);
  if (own != nullptr && !text.empty()) joined += "\n\n";
  if (own != nullptr) joined += own->string();
  both->set(heap.string("content"), heap.string(std::move(joined)));
  return Value::dict(both);
}

/// Returns whether the second of two messages may be joined to the first.
bool may_join(const Value& first, const Value& second, std::string_view role) {
  if (plain_text(first, role) == nullptr) return false;
  if (role == "user") return plain_text(second, role) != nullptr;
  // A message with calls takes the text before it.
  const Value* own = text_member(second, "role");
  const Value* content = own == nullptr ? nullptr : second.entries().find("content");
  return own != nullptr && own->string() == role &&
         (content == nullptr || content->is(Kind::kNone) || content->is(Kind::kString));
}

void join_neighbours(std::vector<Value>& messages, std::string_view role, Heap& heap) {
  std::vector<Value> joined;
  for (const Value& message : messages) {
    if (!joined.empty() && may_join(joined.back(), message, role)) {
      joined.back() = with_text_before(plain_text(joined.back(), role)->string(), message, heap);
    } else {
      joined.push_back(message);
    }
  }
  messages = std::move(joined);
}

Value empty_message(std::string_view role, Heap& heap) {
  auto* message = heap.make<jinja::DictObject>(heap);
  message->set(heap.string("role"), heap.string(std::string(role)));
  message->set(heap.string("content"), heap.string(""));
  return Value::dict(message);
}

bool has_role(const Value& message, std::string_view role) {
  const Value* own = text_member(message, "role");
  return own != nullptr && own->string() == role;
}

/// Puts an empty message of the user before an assistant that begins.
void begin_with_user(std::vector<Value>& messages, Heap& heap) {
  const auto is_system = [](const Value& message) { return has_role(message, "system"); };
  const auto first = std::ranges::find_if_not(messages, is_system);
  if (first != messages.end() && has_role(*first, "assistant")) messages.insert(first, empty_message("user", heap));
}

/// Puts an empty message of the assistant between calls or their results and the user.
void add_answers(std::vector<Value>& messages, Heap& heap) {
  std::vector<Value> answered;
  for (const Value& message : messages) {
    const bool follows_calls =
        !answered.empty() && (is_result(answered.back()) || calls_of(answered.back()) != nullptr);
    if (follows_calls && has_role(message, "user")) answered.push_back(empty_message("assistant", heap));
    answered.push_back(message);
  }
  messages = std::move(answered);
}

/// Returns whether the template fails at the user after a call and its result, and takes an empty message of the
/// assistant between them.
bool probe_needs_answer(const MessageShapes::Render& render) {
  constexpr std::string_view kDetail = R"(,{"role":"user","content":"probe detail"})";
  constexpr std::string_view kAnswerAndUser =
      R"(,{"role":"assistant","content":""},{"role":"user","content":"probe detail"})";
  return !CallProbe{.calls = 1, .has_names = true, .following = kDetail}.rendered(render) &&
         CallProbe{.calls = 1, .has_names = true, .following = kAnswerAndUser}.rendered(render);
}

}  // namespace

RoleTurns RoleTurns::probe(const MessageShapes::Render& render) {
  const auto message = [](std::string_view role, std::string_view text) {
    return fmt::format(R"({{"role":"{}","content":"{}"}})", role, text);
  };
  const auto shows = [&](std::initializer_list<std::pair<std::string_view, std::string_view>> turns) {
    std::string messages;
    for (const auto& [role, text] : turns) messages += (messages.empty() ? "[" : ",") + message(role, text);
    messages += ']';
    for (const bool as_parts : {false, true}) {
      const auto text = render(messages, as_parts);
      size_t at = 0;
      for (const auto& turn : turns) {
        at = text && at != std::string::npos ? text->find(turn.second, at) : std::string::npos;
        if (at != std::string::npos) at += turn.second.size();
      }
      if (at != std::string::npos) return true;
    }
    return false;
  };
  const std::pair<std::string_view, std::string_view> task{"user", "probe task"};
  const std::pair<std::string_view, std::string_view> detail{"user", "probe detail"};
  const std::pair<std::string_view, std::string_view> reply{"assistant", "probe reply"};
  const std::pair<std::string_view, std::string_view> remark{"assistant", "probe remark"};
  RoleTurns found;
  found.needs_user_first_ = !shows({reply, task}) && shows({{"user", ""}, reply, task});
  found.needs_answer_ = probe_needs_answer(render);
  // A template that shows no earlier message at all gains nothing.
  if (!shows({task, reply, detail})) return found;
  found.joins_user_ =
      !shows({task, detail}) || !shows({task, reply, task, detail}) || !shows({task, detail, reply, task});
  found.joins_assistant_ = !shows({task, reply, remark, detail});
  return found;
}

void RoleTurns::adapt(const Value& messages, Heap& heap) const {
  if (!messages.is(Kind::kList)) return;
  if (joins_user_) join_neighbours(messages.items(), "user", heap);
  if (joins_assistant_) join_neighbours(messages.items(), "assistant", heap);
  if (needs_user_first_) begin_with_user(messages.items(), heap);
  if (needs_answer_) add_answers(messages.items(), heap);
}

}  // namespace millrace::text
