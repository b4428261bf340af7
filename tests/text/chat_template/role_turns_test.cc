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

constexpr std::string_view kTakesAllTurns = "{% for m in messages %}{{ '<' + m.role + '>' + m.content }}{% endfor %}";
/// Fails unless the user's messages and the assistant's take turns.
constexpr std::string_view kTurnsAlternate =
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('turns must alternate') }}{% endif %}{{ '<' + m.role + '>' + m.content }}{% endfor %}";
/// Shows the later one of two messages of the user.
constexpr std::string_view kDropsEarlier =
    "{% for m in messages %}{% if m.role != 'user' or loop.last or loop.nextitem.role != 'user' %}"
    "{{ '<' + m.role + '>' + m.content }}{% endif %}{% endfor %}";
constexpr const char* kAnswered = R"({"role":"assistant","content":"yes"})";

std::string user_of(std::string_view text) {
  return fmt::format(R"({{"role":"user","content":"{}"}})", text);
}

std::string render_turns(const auto& source, const std::string& messages) {
  return rendered(source, messages, true);
}

}  // namespace

TEST_CASE("Neighbouring user messages stay apart where shown") {
  CHECK(render_turns(kTakesAllTurns, fmt::format("[{},{}]", user_of("a"), user_of("b"))) == "<user>a<user>b");
}

TEST_CASE("Neighbouring user messages join if need be") {
  for (const std::string_view source : {kTurnsAlternate, kDropsEarlier}) {
    CAPTURE(source);
    const std::string three = fmt::format("[{},{},{}]", user_of("a"), user_of("b"), user_of("c"));
    CHECK(render_turns(source, three) == "<user>a\n\nb\n\nc");
    const std::string later = fmt::format("[{},{},{},{}]", user_of("a"), kAnswered, user_of("b"), user_of("c"));
    CHECK(render_turns(source, later) == "<user>a<assistant>yes<user>b\n\nc");
    const std::string apart = fmt::format("[{},{},{}]", user_of("a"), kAnswered, user_of("b"));
    CHECK(render_turns(source, apart) == "<user>a<assistant>yes<user>b");
  }
}

TEST_CASE("Neighbouring assistant messages join if need be") {
  constexpr const char* kMore = R"({"role":"assistant","content":"more"})";
  const std::string chat = fmt::format("[{},{},{},{}]", user_of("a"), kAnswered, kMore, user_of("b"));
  CHECK(render_turns(kTakesAllTurns, chat) == "<user>a<assistant>yes<assistant>more<user>b");
  CHECK(render_turns(kTurnsAlternate, chat) == "<user>a<assistant>yes\n\nmore<user>b");
  constexpr const char* kCalling = R"({"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function",)"
                                   R"("function":{"name":"f","arguments":"{}"}}]})";
  const std::string calling = fmt::format("[{},{},{},{}]", user_of("a"), kAnswered, kCalling, user_of("b"));
  CHECK(render_turns(kTurnsAlternate, calling) == "<user>a<assistant>yes<user>b");
}

TEST_CASE("An assistant that begins follows an empty message if need be") {
  const std::string chat = fmt::format("[{},{}]", kAnswered, user_of("b"));
  CHECK(render_turns(kTakesAllTurns, chat) == "<assistant>yes<user>b");
  CHECK(render_turns(kTurnsAlternate, chat) == "<user><assistant>yes<user>b");
  constexpr std::string_view kSystemAndTurns =
      "{% if messages[0].role == 'system' %}{{ messages[0].content + '|' }}{% set messages = messages[1:] %}{% endif %}"
      "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}"
      "{% endif %}{{ '<' + m.role + '>' + m.content }}{% endfor %}";
  const std::string rules = fmt::format(R"([{{"role":"system","content":"s"}},{},{}])", kAnswered, user_of("b"));
  CHECK(render_turns(kSystemAndTurns, rules) == "s|<user><assistant>yes<user>b");
}

TEST_CASE("An empty answer follows results if need be") {
  // Counts the turns of the user and the answers, as Mistral's templates do.
  constexpr std::string_view kAnswersAlternate =
      "{% set ns = namespace(i=0) %}{% for m in messages %}"
      "{% if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}"
      "{% if (m.role == 'user') != (ns.i % 2 == 0) %}{{ raise_exception('turns must alternate') }}{% endif %}"
      "{% set ns.i = ns.i + 1 %}{% endif %}{{ '<' + m.role + '>' + m.content }}"
      "{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}{% endfor %}";
  constexpr std::string_view kTakesAny =
      "{% for m in messages %}{{ '<' + m.role + '>' + m.content }}"
      "{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}{% endfor %}";
  constexpr const char* kPlainCall =
      R"({"role":"assistant","content":"","tool_calls":[{"id":"call_abcdef","type":"function",)"
      R"("function":{"name":"f","arguments":"{}"}}]})";
  constexpr const char* kCallResult = R"({"role":"tool","tool_call_id":"call_abcdef","content":"r"})";
  const std::string interrupted = fmt::format("[{},{},{},{}]", user_of("a"), kPlainCall, kCallResult, user_of("b"));
  CHECK(render_turns(kAnswersAlternate, interrupted) == "<user>a<assistant>f<tool>r<assistant><user>b");
  CHECK(render_turns(kTakesAny, interrupted) == "<user>a<assistant>f<tool>r<user>b");
  const std::string without_result = fmt::format("[{},{},{}]", user_of("a"), kPlainCall, user_of("b"));
  CHECK(render_turns(kAnswersAlternate, without_result) == "<user>a<assistant>f<assistant><user>b");
  const std::string answered =
      fmt::format("[{},{},{},{},{}]", user_of("a"), kPlainCall, kCallResult, kAnswered, user_of("b"));
  CHECK(render_turns(kAnswersAlternate, answered) == "<user>a<assistant>f<tool>r<assistant>yes<user>b");
}

TEST_CASE("User messages that name their sender stay apart") {
  const std::string named = fmt::format(R"([{},{{"role":"user","name":"ann","content":"b"}}])", user_of("a"));
  CHECK(render_turns(kTurnsAlternate, named).find("turns must alternate") != std::string::npos);
}

TEST_CASE("Templates of real models show two user messages") {
  const auto dir = test::shared_data_dir() / "chat_templates";
  if (!std::filesystem::exists(dir)) SKIP_TEST("the shared data folder is absent");
  size_t count = 0;
  for (const auto& model : std::filesystem::directory_iterator(dir)) {
    CAPTURE(model.path().string());
    const auto made = ChatTemplate::load(model.path());
    REQUIRE(made.has_value());
    const std::string task = user_of("look around");
    const std::string detail = user_of("then report");
    const std::string rule = R"({"role":"system","content":"be brief"})";
    for (const std::string& chat : {fmt::format("[{},{}]", task, detail), fmt::format("[{},{},{}]", rule, task, detail),
                                    fmt::format("[{},{},{},{}]", detail, kAnswered, task, detail),
                                    fmt::format("[{},{},{},{}]", task, detail, kAnswered, detail)}) {
      const std::string shown = render_turns(**made, chat);
      const size_t at = shown.find("look around");
      CAPTURE(chat, shown);
      CHECK(at != std::string::npos);
      CHECK(shown.find("then report", at) != std::string::npos);
    }
    ++count;
  }
  CHECK(count >= 8);
}
