#include <catch2/catch.hpp>
#include <string>

#include "support/mentions.h"
#include "text/chat_template/chat_template.h"

using namespace millrace;
using namespace millrace::text;

namespace {

std::string render_tools(std::string_view source, std::string_view tools) {
  const auto made = ChatTemplate::from_source(source);
  REQUIRE(made.has_value());
  ChatInput input;
  input.messages_json = R"([{"role":"user","content":"q"}])";
  input.tools_json = tools;
  const auto text = (*made)->render(input);
  return text.has_error() ? "error: " + text.error().message : *text;
}

constexpr std::string_view kBare = R"([{"type":"function","function":{"name":"f"}}])";
constexpr std::string_view kNulls =
    R"([{"type":"function","function":{"name":"f","description":null,"parameters":null}}])";

}  // namespace

TEST_CASE("Tools are shown as they were sent") {
  for (const std::string_view tools : {kBare, kNulls}) {
    CAPTURE(tools);
    std::string spaced;  // as json.dumps writes it
    for (const char c : tools) {
      spaced += c;
      if (c == ',' || c == ':') spaced += ' ';
    }
    CHECK(render_tools("{{ tools | tojson }}", tools) == spaced);
  }
}

TEST_CASE("Tools get the members without which a template fails") {
  constexpr std::string_view kNeedsMembers =
      "{% for t in tools %}{{ t.function.name + ':' + t.function.description }}"
      "{% for name, p in t.function.parameters.properties.items() %}{{ ' ' + name + '=' + p.description }}"
      "{% if 'enum' in p %}!{% endif %}{% endfor %}{{ t.function.parameters.type }};{% endfor %}";
  for (const std::string_view tools : {kBare, kNulls}) CHECK(render_tools(kNeedsMembers, tools) == "f:object;");
  CHECK(render_tools(kNeedsMembers, R"([{"type":"function","function":{"name":"f","parameters":{}}}])") == "f:object;");
  constexpr std::string_view kProperties =
      R"([{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","properties":)"
      R"({"a":{"description":null},"b":true,"c":{"description":"e","enum":[1]}}}}}])";
  CHECK(render_tools(kNeedsMembers, kProperties) == "f:d a= b= c=e!object;");
}

TEST_CASE("A template of bare functions gets them") {
  CHECK(render_tools("{% for t in tools %}{{ t['name'] + ';' }}{% endfor %}", kBare) == "f;");
}

TEST_CASE("Of several failures the first is told") {
  constexpr std::string_view kFails = "{% for t in tools %}{{ t.function.title + '' }}{% endfor %}";
  CHECK_THAT(render_tools(kFails, kBare), test::Mentions("title"));
}

TEST_CASE("Tools of Kimi are shown with their members by name") {
  ChatInput input;
  input.messages_json = "[]";
  input.tools_json = R"([{"type":"function","function":{"name":"f","parameters":{"z":1,"b":[{"y":2,"a":3}]}}}])";
  const auto text_of = [&](std::string_view config) {
    return ChatTemplate::from_source("{{ tools | tojson }}", config).value()->render(input).value();
  };
  CHECK(text_of(R"({"tokenizer_class": "TikTokenTokenizer"})") ==
        R"([{"function": {"name": "f", "parameters": {"b": [{"a": 3, "y": 2}], "z": 1}}, "type": "function"}])");
  CHECK(text_of("{}") ==
        R"([{"type": "function", "function": {"name": "f", "parameters": {"z": 1, "b": [{"y": 2, "a": 3}]}}}])");
}
