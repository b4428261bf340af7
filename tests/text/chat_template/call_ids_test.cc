#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <string>

#include "text/chat_template/rendered.h"

using namespace millrace;
using namespace millrace::text;

namespace {

/// Shows the ids of calls and the names of results, as Kimi K2's templates do.
constexpr std::string_view kIdsOnly =
    "{% for m in messages %}{% for c in m.tool_calls or [] %}<{{ c.id }}>{% endfor %}"
    "{{ m.name or '' }}{% if m.role == 'tool' %}({{ m.tool_call_id }}){% endif %}{{ m.content or '' }};{% endfor %}";
constexpr std::string_view kLongIds =
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id | length < 9 %}{{ raise_exception('short') }}"
    "{% endif %}<{{ c.function.name + '|' + c.id }}>{% endfor %}{% if m.role == 'tool' %}({{ m.tool_call_id }})"
    "{% endif %}{{ m.content or '' }};{% endfor %}";

std::string named_call(std::string_view id, std::string_view name) {
  return fmt::format(
      R"({{"role":"assistant","content":"","tool_calls":[{{"id":"{}","type":"function","function":{{"name":"{}",)"
      R"("arguments":"{{}}"}}}}]}})",
      id, name);
}

std::string named_result(std::string_view id, std::string_view content) {
  return fmt::format(R"({{"role":"tool","tool_call_id":"{}","content":"{}"}})", id, content);
}

constexpr std::string_view kAsked = R"({"role":"user","content":"q"})";

}  // namespace

TEST_CASE("Ids hold the names that a template does not show") {
  const std::string chat =
      fmt::format("[{},{},{},{},{}]", kAsked, named_call("call_1", "look"), named_result("call_1", "r"),
                  named_call("call_2", "find"), named_result("call_2", "s"));
  CHECK(rendered(kIdsOnly, chat) ==
        "q;<functions.look:0>;look(functions.look:0)r;<functions.find:1>;find(functions.find:1)s;");
  const std::string own =
      fmt::format("[{},{},{}]", kAsked, named_call("functions.look:7", "look"), named_result("functions.look:7", "r"));
  CHECK(rendered(kIdsOnly, own) == "q;<functions.look:7>;look(functions.look:7)r;");
  const std::string again = fmt::format("[{},{},{},{},{}]", kAsked, named_call("c", "look"), named_result("c", "r"),
                                        named_call("c", "find"), named_result("c", "s"));
  CHECK(rendered(kIdsOnly, again) ==
        "q;<functions.look:0>;look(functions.look:0)r;<functions.find:1>;find(functions.find:1)s;");
}

TEST_CASE("Ids that are too short for a template are replaced") {
  const std::string chat = fmt::format("[{},{},{}]", kAsked, named_call("call_1", "look"), named_result("call_1", "r"));
  const std::string text = rendered(kLongIds, chat);
  const size_t begin = text.find("look|") + 5;
  const std::string id = text.substr(begin, text.find('>') - begin);
  CHECK(id.size() == 9);
  CHECK(text == fmt::format("q;<look|{}>;({})r;", id, id));
  const std::string longer =
      fmt::format("[{},{},{}]", kAsked, named_call("call_0123456789", "look"), named_result("call_0123456789", "r"));
  CHECK(rendered(kLongIds, longer) == "q;<look|call_0123456789>;(call_0123456789)r;");
}
