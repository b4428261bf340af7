#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>

#include "support/paths.h"
#include "support/skip.h"
#include "text/chat_template/rendered.h"

using namespace millrace;
using namespace millrace::text;

namespace {

constexpr std::string_view kEachMessage = "{{ '<' + m.role + '>' + m.content }}";
/// Takes a system message at the start alone, and fails at a later one.
constexpr std::string_view kRaises =
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('system must be first') }}"
    "{% endif %}{{ '<' + m.role + '>' + m.content }}{% endfor %}";
/// Drops later system messages.
constexpr std::string_view kDrops =
    "{% for m in messages %}{% if m.role != 'system' or loop.first %}{{ '<' + m.role + '>' + m.content }}{% endif %}"
    "{% endfor %}";
/// Wants turns of user and assistant after the system message.
constexpr std::string_view kAlternates =
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content + '|' %}{% set turns = messages[1:] %}"
    "{% else %}{% set system = '' %}{% set turns = messages %}{% endif %}{% for m in turns %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns must alternate') }}{% endif %}"
    "{{ '<' + m.role + '>' + (system if loop.first else '') + m.content }}{% endfor %}";
/// Takes several system messages at the start, and none later.
constexpr std::string_view kTakesRun =
    "{% set state = namespace(turns=false) %}{% for m in messages %}{% if m.role != 'system' %}"
    "{% set state.turns = true %}{% elif state.turns %}{{ raise_exception('too late') }}{% endif %}"
    "{{ '<' + m.role + '>' + m.content }}{% endfor %}";

constexpr const char* kHi = R"({"role":"user","content":"hi"})";
constexpr const char* kYes = R"({"role":"assistant","content":"yes"})";

std::string system_of(std::string_view text) {
  return fmt::format(R"({{"role":"system","content":"{}"}})", text);
}

}  // namespace

TEST_CASE("System messages stay where the template shows them") {
  const std::string all = fmt::format("{{% for m in messages %}}{}{{% endfor %}}", kEachMessage);
  const std::string chat = fmt::format("[{},{},{},{},{}]", system_of("a"), system_of("b"), kHi, system_of("c"), kYes);
  CHECK(rendered(all, chat) == "<system>a<system>b<user>hi<system>c<assistant>yes");
  CHECK(rendered(kTakesRun, fmt::format("[{},{},{}]", system_of("a"), system_of("b"), kHi)) ==
        "<system>a<system>b<user>hi");
}

TEST_CASE("Later system messages move to the start if need be") {
  const std::string one = fmt::format("[{},{},{},{}]", system_of("a"), kHi, system_of("c"), kYes);
  const std::string several =
      fmt::format("[{},{},{},{},{}]", system_of("a"), system_of("b"), kHi, system_of("c"), kYes);
  const std::string none_first = fmt::format("[{},{},{}]", kHi, system_of("c"), kYes);
  for (const std::string_view source : {kRaises, kDrops, kTakesRun}) {
    CAPTURE(source);
    CHECK(rendered(source, one) == "<system>a\nc<user>hi<assistant>yes");
    CHECK(rendered(source, several) == "<system>a\nb\nc<user>hi<assistant>yes");
    CHECK(rendered(source, none_first) == "<system>c<user>hi<assistant>yes");
  }
  CHECK(rendered(kAlternates, one) == "<user>a\nc|hi<assistant>yes");
  CHECK(rendered(kAlternates, several) == "<user>a\nb\nc|hi<assistant>yes");
  CHECK(rendered(kAlternates, fmt::format("[{},{},{}]", system_of("a"), system_of("b"), kHi)) == "<user>a\nb|hi");
}

TEST_CASE("A template without system messages keeps its own words") {
  constexpr std::string_view kRefuses =
      "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system here') }}{% endif %}"
      "{{ m.content }}{% endfor %}";
  CHECK(rendered(kRefuses, fmt::format("[{},{}]", kHi, system_of("c"))).find("no system here") != std::string::npos);
  CHECK(rendered(kRefuses, fmt::format("[{},{}]", kHi, kYes)) == "hiyes");
}

TEST_CASE("Ids of calls have the form that the template takes") {
  constexpr std::string_view kCallsOf =
      "{% for m in messages %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}CHECK(c.id){{ c.function.name "
      "}}({{ c.id }})"
      "{% endfor %}{% if m.tool_call_id %}CHECK(m.tool_call_id)[{{ m.tool_call_id }}]{% endif %}{% endfor %}";
  const auto with_check = [&](std::string_view check) {
    std::string source(kCallsOf);
    for (const std::string_view name : {"c.id", "m.tool_call_id"}) {
      const std::string mark = fmt::format("CHECK({})", name);
      source.replace(source.find(mark), mark.size(), fmt::format(fmt::runtime(check), name));
    }
    return source;
  };
  const auto chat = [](std::string_view id) {
    return fmt::format(R"([{0},{{"role":"assistant","content":"","tool_calls":[{{"id":"{1}","type":"function",)"
                       R"("function":{{"name":"f","arguments":"{{}}"}}}}]}},)"
                       R"({{"role":"tool","tool_call_id":"{1}","content":"seen"}}])",
                       kHi, id);
  };
  const std::string any = with_check("");
  CHECK(rendered(any, chat("toolu_0123456789")) == "hif(toolu_0123456789)seen[toolu_0123456789]");
  const std::string nine = with_check("{{% if {} | length != 9 %}}{{{{ raise_exception('nine') }}}}{{% endif %}}");
  CHECK(rendered(nine, chat("a1b2c3d4e")) == "hif(a1b2c3d4e)seen[a1b2c3d4e]");
  const std::string replaced = rendered(nine, chat("toolu_0123456789"));
  REQUIRE(replaced.size() == std::string_view("hif(123456789)seen[123456789]").size());
  CHECK(replaced.substr(4, 9) == replaced.substr(19, 9));
  CHECK(rendered(nine, chat("toolu_9876543210")) != replaced);
}

TEST_CASE("Templates of real models show late system messages") {
  const auto dir = test::shared_data_dir() / "chat_templates";
  if (!std::filesystem::exists(dir)) SKIP_TEST("the shared data folder is absent");
  size_t count = 0;
  for (const auto& model : std::filesystem::directory_iterator(dir)) {
    CAPTURE(model.path().string());
    const auto made = ChatTemplate::load(model.path());
    REQUIRE(made.has_value());
    const auto shown = [&](const std::string& messages) {
      ChatInput input;
      input.messages_json = messages;
      input.add_generation_prompt = true;
      const auto rendered = (*made)->render(input);
      return rendered.has_error() ? std::string() : *rendered;
    };
    if (shown(fmt::format("[{},{}]", system_of("early rule"), kHi)).find("early rule") == std::string::npos) continue;
    const std::string late =
        shown(fmt::format("[{},{},{},{},{}]", system_of("early rule"), kHi, system_of("late rule"), kYes, kHi));
    CHECK(late.find("early rule") != std::string::npos);
    CHECK(late.find("late rule") != std::string::npos);
    CHECK(shown(fmt::format("[{},{}]", kHi, system_of("late rule"))).find("late rule") != std::string::npos);
    ++count;
  }
  CHECK(count >= 5);
}
