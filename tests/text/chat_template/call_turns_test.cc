#include <catch2/catch.hpp>
#include <string>
#include <string_view>

#include "text/chat_template/rendered.h"

using namespace millrace;
using namespace millrace::text;

namespace {

/// Takes one call per message, as the templates of Llama 3 do.
constexpr std::string_view kOneCall =
    "{% for m in messages %}{{ '<' + m.role + '>' }}{% if m.tool_calls %}{% if m.tool_calls|length != 1 %}"
    "{{ raise_exception('one call at once') }}{% endif %}{{ m.tool_calls[0].function.name }};{% endif %}"
    "{{ m.content or '' }}{% endfor %}";
/// Shows the first call of a message, as the template of gpt-oss does.
constexpr std::string_view kFirstCall =
    "{% for m in messages %}{{ '<' + m.role + '>' }}{% if m.tool_calls %}{{ m.tool_calls[0].function.name }};"
    "{% endif %}{{ m.content or '' }}{% endfor %}";
/// Shows calls of messages without content only, as the templates of DeepSeek R1's distillations do.
constexpr std::string_view kTextOrCalls =
    "{% for m in messages %}{{ '<' + m.role + '>' }}{% if m.tool_calls and m.content is none %}"
    "{% for c in m.tool_calls %}{{ c.function.name }};{% endfor %}{% else %}{{ m.content or '' }}{% endif %}{% endfor "
    "%}";
constexpr std::string_view kTakesAll =
    "{% for m in messages %}{{ '<' + m.role + '>' + (m.content or '') }}{% for c in m.tool_calls or [] %}"
    "{{ c.function.name }};{% endfor %}{% endfor %}";
/// A template with the words of conversations in a text of its own.
constexpr std::string_view kTalks =
    "hello, if errors are found then say done{% for m in messages %}{{ '<' + m.role + '>' + (m.content or '') }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }};{% endfor %}{% endfor %}";

constexpr std::string_view kTwoCalls =
    R"([{"role":"user","content":"q"},{"role":"assistant","content":"so","tool_calls":[
        {"id":"a","type":"function","function":{"name":"f","arguments":"{}"}},
        {"id":"b","type":"function","function":{"name":"g","arguments":"{}"}}]},
        {"role":"tool","tool_call_id":"b","content":"two"},{"role":"tool","tool_call_id":"a","content":"one"}])";

}  // namespace

TEST_CASE("Several calls are divided where one is taken") {
  for (const std::string_view source : {kOneCall, kFirstCall}) {
    CAPTURE(source);
    CHECK(rendered(source, kTwoCalls) == "<user>q<assistant>f;so<tool>one<assistant>g;<tool>two");
  }
  CHECK(rendered(kTakesAll, kTwoCalls) == "<user>q<assistant>sof;g;<tool>one<tool>two");
}

TEST_CASE("Calls without results and strange results are divided too") {
  constexpr std::string_view kOpen =
      R"([{"role":"user","content":"q"},{"role":"assistant","tool_calls":[
          {"id":"a","type":"function","function":{"name":"f","arguments":"{}"}},
          {"id":"b","type":"function","function":{"name":"g","arguments":"{}"}}]},
          {"role":"tool","tool_call_id":"x","content":"one"}])";
  CHECK(rendered(kFirstCall, kOpen) == "<user>q<assistant>f;<tool>one<assistant>g;");
}

TEST_CASE("Text stays apart from calls that it would hide") {
  CHECK(rendered(kTextOrCalls, kTwoCalls) == "<user>q<assistant>so<assistant>f;g;<tool>one<tool>two");
}

TEST_CASE("A template with the words of a conversation is known") {
  CHECK(rendered(kTalks, kTwoCalls) ==
        "hello, if errors are found then say done<user>q<assistant>sof;g;<tool>one<tool>two");
}

TEST_CASE("A template that needs a list of tools gets an empty one") {
  constexpr std::string_view kLoops = "{% for t in tools %}{{ t.function.name }}{% endfor %}{{ messages[0].content }}";
  CHECK(rendered(kLoops, R"([{"role":"user","content":"q"}])") == "q");
  constexpr std::string_view kTests = "{% if tools is none %}none{% endif %}{{ messages[0].content }}";
  CHECK(rendered(kTests, R"([{"role":"user","content":"q"}])") == "noneq");
}
