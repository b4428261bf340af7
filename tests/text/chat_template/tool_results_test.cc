#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <string>
#include <string_view>

#include "text/chat_template/chat_template.h"

using namespace millrace;
using namespace millrace::text;

namespace {

/// Shows results by their order, as Qwen's templates do.
constexpr std::string_view kInOrder =
    "{% for m in messages %}{{ '<' + m.role + '>' }}{% for c in m.tool_calls or [] %}{{ c.function.name }};{% endfor %}"
    "{{ m.content or '' }}{% endfor %}";
constexpr std::string_view kShowsIds =
    "{% for m in messages %}{{ '<' + m.role + '>' }}{% for c in m.tool_calls or [] %}"
    "{{ c.id + c.function.name }};{% endfor %}{{ m.tool_call_id or '' }}{{ m.content or '' }}{% endfor %}";
/// Finds the call of a result by its id, and shows the call's name.
constexpr std::string_view kFindsCalls =
    "{% set ns = namespace(names={}) %}{% for m in messages %}{% for c in m.tool_calls or [] %}"
    "{% set ns.names = dict(ns.names, **{c.id: c.function.name}) %}{{ c.function.name }};{% endfor %}"
    "{% if m.role == 'tool' %}{{ ns.names[m.tool_call_id] }}={% endif %}{{ m.content or '' }}{% endfor %}";
constexpr std::string_view kNeedsIds =
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id is not defined %}{{ raise_exception('no id') }}"
    "{% endif %}{{ c.function.name + c.id }};{% endfor %}{% if m.role == 'tool' %}{% if m.tool_call_id is not defined "
    "%}"
    "{{ raise_exception('no id') }}{% endif %}{{ m.tool_call_id }}={% endif %}{{ m.content or '' }}|{% endfor %}";
constexpr std::string_view kNeedsNames =
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.name }};{% endfor %}"
    "{% if m.role == 'tool' %}{{ m.name + '=' }}{% endif %}{{ m.content or '' }}|{% endfor %}";

std::string calls_of(std::string_view first_id, std::string_view second_id) {
  const auto call = [](std::string_view id, std::string_view name) {
    return fmt::format(R"({{{}"type":"function","function":{{"name":"{}","arguments":"{{}}"}}}})",
                       id.empty() ? "" : fmt::format(R"("id":"{}",)", id), name);
  };
  return fmt::format(R"({{"role":"user","content":"q"}},{{"role":"assistant","content":"","tool_calls":[{},{}]}})",
                     call(first_id, "f"), call(second_id, "g"));
}

std::string result_of(std::string_view id, std::string_view content) {
  return fmt::format(R"(,{{"role":"tool",{}"content":"{}"}})",
                     id.empty() ? "" : fmt::format(R"("tool_call_id":"{}",)", id), content);
}

std::string render_results(std::string_view source, const std::string& messages) {
  const auto made = ChatTemplate::from_source(source);
  REQUIRE(made.has_value());
  const std::string whole = '[' + messages + ']';
  ChatInput input;
  input.messages_json = whole;
  const auto rendered = (*made)->render(input);
  return rendered.has_error() ? "error: " + rendered.error().message : *rendered;
}

}  // namespace

TEST_CASE("Results come in the order of calls if ids are hidden") {
  const std::string calls = calls_of("b", "a");
  const std::string swapped = calls + result_of("a", "two") + result_of("b", "one");
  CHECK(render_results(kInOrder, swapped) == "<user>q<assistant>f;g;<tool>one<tool>two");
  CHECK(render_results(kInOrder, calls + result_of("b", "one") + result_of("a", "two")) ==
        "<user>q<assistant>f;g;<tool>one<tool>two");
  const std::string twice = swapped + R"(,{"role":"user","content":"r"},)" + swapped;
  CHECK(render_results(kInOrder, twice) ==
        "<user>q<assistant>f;g;<tool>one<tool>two<user>r<user>q<assistant>f;g;<tool>one<tool>two");
}

TEST_CASE("Results stay in place where their call is shown") {
  const std::string swapped = calls_of("b", "a") + result_of("a", "two") + result_of("b", "one");
  CHECK(render_results(kShowsIds, swapped) == "<user>q<assistant>bf;ag;<tool>atwo<tool>bone");
  CHECK(render_results(kFindsCalls, swapped) == "qf;g;g=twof=one");
}

TEST_CASE("Results that name no call stay in place") {
  const std::string calls = calls_of("b", "a");
  CHECK(render_results(kInOrder, calls + result_of("a", "two") + result_of("x", "one")) ==
        "<user>q<assistant>f;g;<tool>two<tool>one");
  CHECK(render_results(kInOrder, calls + result_of("a", "two") + result_of("", "one")) ==
        "<user>q<assistant>f;g;<tool>two<tool>one");
  // Each result with an equal id takes the next call.
  CHECK(render_results(kInOrder, calls_of("a", "a") + result_of("a", "one") + result_of("a", "two")) ==
        "<user>q<assistant>f;g;<tool>one<tool>two");
}

TEST_CASE("Ids and names are filled in where the template fails") {
  const std::string plain = calls_of("", "") + result_of("", "one") + result_of("", "two");
  CHECK(render_results(kNeedsIds, plain) == "q|fcall00001;gcall00002;|call00001=one|call00002=two|");
  CHECK(render_results(kNeedsIds, calls_of("a", "b") + result_of("b", "two") + result_of("", "one")) ==
        "q|fa;gb;|b=two|a=one|");
  CHECK(render_results(kNeedsNames, calls_of("b", "a") + result_of("a", "two") + result_of("b", "one")) ==
        "q|f;g;|f=one|g=two|");
  CHECK(render_results(kNeedsNames, plain) == "q|f;g;|f=one|g=two|");
  CHECK(render_results(kInOrder, plain) == "<user>q<assistant>f;g;<tool>one<tool>two");
}
