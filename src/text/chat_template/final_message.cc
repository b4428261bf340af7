#include "text/chat_template/final_message.h"

#include "text/chat_template/jinja_builtins.h"

namespace millrace::text {
namespace {

using jinja::DictObject;
using jinja::Heap;
using jinja::Kind;
using jinja::Value;

/// Digits survive what templates do to text: changes of case, escapes, trimming.
constexpr std::string_view kMark = "9031752684091537";
/// White space that no template writes. Between a mark and a copy of the text's last space it tells that copy from the
/// template's own space.
constexpr char kGuard = '\v';

/// The member of `dict` that holds the text to continue, and the dict itself; null where there is none.
struct TextSlot {
  DictObject* owner = nullptr;
  std::string_view key;
};

TextSlot find_text_slot(const Value& messages) {
  if (!messages.is(Kind::kList) || messages.items().empty() || !messages.items().back().is(Kind::kDict)) {
    jinja::fail("continue_final_message: there is no final message");
  }
  DictObject& message = messages.items().back().entries();
  const Value* content = message.find("content");
  if (content == nullptr || content->is(Kind::kNone) || content->is(Kind::kString)) return {&message, "content"};
  if (content->is(Kind::kList)) {
    for (auto part = content->items().rbegin(); part != content->items().rend(); ++part) {
      const Value* text = part->is(Kind::kDict) ? part->entries().find("text") : nullptr;
      if (text != nullptr && text->is(Kind::kString)) return {&part->entries(), "text"};
    }
  }
  jinja::fail("continue_final_message: the final message has no text");
}

std::string text_at(const TextSlot& slot) {
  const Value* text = slot.owner->find(slot.key);
  return text != nullptr && text->is(Kind::kString) ? text->string() : std::string();
}

std::string without_last_space(std::string_view text) {
  return jinja::strip(text, Value::absent(), false, true);
}

std::string last_space(std::string_view text) {
  return std::string(text.substr(without_last_space(text).size()));
}

void set_text(const TextSlot& slot, std::string text, Heap& heap) {
  slot.owner->set(heap.string(std::string(slot.key)), heap.string(std::move(text)));
}

}  // namespace

FinalMessage::FinalMessage(std::string_view input_json) : mark_(kMark) {
  for (size_t i = 0; input_json.find(mark_) != std::string_view::npos; ++i) {
    mark_ = std::string(kMark) + std::to_string(i) + std::string(kMark);
  }
}

void FinalMessage::mark(const Value& messages, Heap& heap) {
  const TextSlot slot = find_text_slot(messages);
  const std::string text = text_at(slot);
  const std::string space = last_space(text);
  behind_ = space.empty() ? std::string() : kGuard + space;
  set_text(slot, text + mark_ + behind_, heap);
}

void FinalMessage::mark_stripped(const Value& messages, Heap& heap) {
  const TextSlot slot = find_text_slot(messages);
  behind_.clear();
  set_text(slot, without_last_space(text_at(slot)) + mark_, heap);
}

bool FinalMessage::cut(std::string& rendered) const {
  const size_t at = rendered.rfind(mark_);
  if (at == std::string::npos) jinja::fail("continue_final_message: the template does not show the final message");
  const bool is_whole = rendered.compare(at + mark_.size(), behind_.size(), behind_) == 0;
  rendered.resize(at);
  return is_whole;
}

}  // namespace millrace::text
