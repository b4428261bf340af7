#include "text/chat_template/call_messages.h"

#include <fmt/format.h>

#include <algorithm>

namespace millrace::text {

using jinja::Kind;
using jinja::Value;

const Value* text_member(const Value& value, std::string_view name) {
  const Value* found = value.is(Kind::kDict) ? value.entries().find(name) : nullptr;
  return found != nullptr && found->is(Kind::kString) && !found->string().empty() ? found : nullptr;
}

bool is_result(const Value& message) {
  const Value* role = text_member(message, "role");
  return role != nullptr && role->string() == "tool";
}

const std::vector<Value>* calls_of(const Value& message) {
  const Value* calls = message.is(Kind::kDict) ? message.entries().find("tool_calls") : nullptr;
  const bool are_calls = calls != nullptr && calls->is(Kind::kList) && !calls->items().empty() &&
                         std::ranges::all_of(calls->items(), [](const Value& each) { return each.is(Kind::kDict); });
  return are_calls ? &calls->items() : nullptr;
}

std::optional<size_t> call_named(const std::vector<Value>& calls, const Value& result, const std::vector<bool>& taken) {
  const Value* id = text_member(result, "tool_call_id");
  for (size_t i = 0; id != nullptr && i < calls.size(); ++i) {
    const Value* own = text_member(calls[i], "id");
    if (own != nullptr && own->string() == id->string() && !taken[i]) return i;
  }
  return std::nullopt;
}

std::string CallProbe::messages(std::string_view no_content, std::string_view arguments) const {
  const auto call = [&](bool is_first) {
    return fmt::format(R"({{{}"type":"function","function":{{"name":"{}","arguments":{}}}}})",
                       has_ids ? fmt::format(R"("id":"{}",)", is_first ? kFirstId : kSecondId) : "",
                       is_first ? kFirstName : kSecondName, arguments);
  };
  const auto result = [&](bool is_first) {
    const std::string content = is_first && has_result_parts
                                    ? fmt::format(R"([{{"type":"text","text":"{}"}},{{"type":"text","text":"{}"}}])",
                                                  kFirstResult, kSecondResult)
                                    : fmt::format(R"("{}")", is_first ? kFirstResult : kSecondResult);
    return fmt::format(
        R"(,{{"role":"tool",{}{}"content":{}}})",
        has_ids ? fmt::format(R"("tool_call_id":"{}",)", is_first != are_ids_swapped ? kFirstId : kSecondId) : "",
        has_names ? fmt::format(R"("name":"{}",)", is_first ? kFirstName : kSecondName) : "", content);
  };
  const auto caller = [&](std::string_view content, const std::string& calling) {
    return fmt::format(R"(,{{"role":"assistant",{}"tool_calls":[{}]}})", content, calling);
  };
  std::string all = R"([{"role":"user","content":"probe question"})";
  if (is_text_apart) all += fmt::format(R"(,{{"role":"assistant","content":"{}"}})", text);
  const std::string own_text = fmt::format(R"("content":"{}",)", text);
  const std::string_view content = text.empty() || is_text_apart ? no_content : std::string_view(own_text);
  if (calls == 2 && are_apart) {
    all += caller(content, call(true)) + result(true) + caller(no_content, call(false)) + result(false);
  } else {
    all += caller(content, calls == 2 ? call(true) + ',' + call(false) : call(true)) + result(true);
    if (calls == 2) all += result(false);
  }
  return all.append(following) + ']';
}

std::optional<std::string> CallProbe::rendered(const MessageShapes::Render& render) const {
  for (const char* no_content : {R"("content":"",)", R"("content":null,)", ""}) {
    for (const char* arguments : {R"({"key":"value"})", R"("{\"key\": \"value\"}")"}) {
      for (const bool as_parts : {false, true}) {
        auto text_of_all = render(messages(no_content, arguments), as_parts);
        const bool is_shown = text_of_all && text_of_all->find(kFirstResult) != std::string::npos;
        // A form in which the template leaves out the call is no use.
        if (is_shown && text_of_all->find(kFirstName) != std::string::npos) return text_of_all;
      }
    }
  }
  return std::nullopt;
}

}  // namespace millrace::text
