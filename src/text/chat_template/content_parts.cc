#include "text/chat_template/content_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "text/chat_template/call_messages.h"

namespace millrace::text {
namespace {

using jinja::Heap;
using jinja::Kind;
using jinja::Value;

constexpr std::array<std::string_view, 4> kRoleNames = {"system", "user", "assistant", "tool"};
constexpr std::string_view kFirst = "probe part one";
constexpr std::string_view kSecond = "probe part two";

/// Returns whether both parts are shown, and not as the list that holds them.
bool shows_parts(const std::optional<std::string>& text, std::string_view first, std::string_view second) {
  if (!text) return false;
  const size_t begin = text->find(first);
  if (begin == std::string::npos) return false;
  const size_t between = begin + first.size();
  const size_t end = text->find(second, between);
  return end != std::string::npos &&
         std::string_view(*text).substr(between, end - between).find("text") == std::string_view::npos;
}

std::optional<size_t> role_index(const Value& message) {
  const Value* role = text_member(message, "role");
  if (role == nullptr) return std::nullopt;
  const auto found = std::ranges::find(kRoleNames, std::string_view(role->string()));
  if (found == kRoleNames.end()) return std::nullopt;
  return static_cast<size_t>(found - kRoleNames.begin());
}

/// Returns the texts of a content that consists of text parts only, joined by newlines.
std::optional<std::string> joined_text(const Value& content) {
  std::string text;
  for (size_t i = 0; i < content.items().size(); ++i) {
    const Value& part = content.items()[i];
    const Value* own = part.is(Kind::kDict) ? part.entries().find("text") : nullptr;
    if (own == nullptr || !own->is(Kind::kString)) return std::nullopt;
    if (i > 0) text += '\n';
    text += own->string();
  }
  return text;
}

}  // namespace

ContentParts ContentParts::probe(const MessageShapes::Render& render) {
  ContentParts found;
  const std::string question = R"({"role":"user","content":"probe question"})";
  for (size_t i = 0; i < kRoles; ++i) {
    if (kRoleNames[i] == "tool") {
      const CallProbe call{.calls = 1, .has_names = true, .has_result_parts = true};
      found.shows_[i] = shows_parts(call.rendered(render), CallProbe::kFirstResult, CallProbe::kSecondResult);
      continue;
    }
    const std::string parts =
        fmt::format(R"({{"role":"{}","content":[{{"type":"text","text":"{}"}},{{"type":"text","text":"{}"}}]}})",
                    kRoleNames[i], kFirst, kSecond);
    const std::string chat = kRoleNames[i] == "user"     ? fmt::format("[{}]", parts)
                             : kRoleNames[i] == "system" ? fmt::format("[{},{}]", parts, question)
                                                         : fmt::format("[{},{},{}]", question, parts, question);
    found.shows_[i] =
        shows_parts(render(chat, false), kFirst, kSecond) || shows_parts(render(chat, true), kFirst, kSecond);
  }
  return found;
}

std::vector<ContentParts::Joined> ContentParts::join(const Value& messages, Heap& heap) {
  std::vector<Joined> joined;
  if (!messages.is(Kind::kList)) return joined;
  for (const Value& message : messages.items()) {
    const Value* content = message.is(Kind::kDict) ? message.entries().find("content") : nullptr;
    if (content == nullptr || !content->is(Kind::kList) || content->items().empty()) continue;
    auto text = joined_text(*content);
    if (!text) continue;
    joined.push_back({.parts = *content, .text = heap.string(std::move(*text))});
    message.entries().set(heap.string("content"), joined.back().text);
  }
  return joined;
}

void ContentParts::restore(const Value& messages, const std::vector<Joined>& joined, Heap& heap) const {
  if (joined.empty() || !messages.is(Kind::kList)) return;
  for (const Value& message : messages.items()) {
    const Value* content = message.is(Kind::kDict) ? message.entries().find("content") : nullptr;
    if (content == nullptr || !content->is(Kind::kString)) continue;
    const auto is_content = [&](const Joined& each) { return each.text.string_object() == content->string_object(); };
    const auto found = std::ranges::find_if(joined, is_content);
    const auto role = role_index(message);
    if (found != joined.end() && role && shows_[*role]) message.entries().set(heap.string("content"), found->parts);
  }
}

}  // namespace millrace::text
