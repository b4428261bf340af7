#include "text/chat_template/chat_template.h"

#include <catch2/catch.hpp>

#include "text/json_support.h"
#include "support/paths.h"
#include "support/skip.h"

using namespace millrace;
using namespace millrace::text;
using simdjson::dom::element;

namespace {

/// Renders `source` with the members of `kwargs` as its variables.
Result<std::string> render(std::string_view source, std::string_view kwargs = "{}") {
  const auto made = ChatTemplate::from_source(source);
  if (made.has_error()) return made.error();
  ChatInput input;
  input.messages_json = "[]";
  input.kwargs_json = kwargs;
  return (*made)->render(input);
}

std::string error_of(std::string_view source, std::string_view kwargs = "{}") {
  const auto rendered = render(source, kwargs);
  return rendered.has_error() ? rendered.error().message : "rendered: " + *rendered;
}

}  // namespace

TEST_CASE("templates render as jinja2 does") {
  const std::string json = test::read_file(test::source_dir() / "tests/text/jinja_cases.json");
  simdjson::dom::parser parser;
  const element document = parser.parse(json);
  const std::string context = test::member_json(document, "context");
  size_t count = 0;
  for (const element item : simdjson::dom::array(document["cases"])) {
    const std::string source = test::member_text(item, "template");
    CAPTURE(source);
    const auto rendered = render(source, context);
    if (test::member_json(item, "error").empty()) {
      if (rendered.has_error()) FAIL_CHECK(rendered.error().message);
      if (rendered.has_value()) CHECK(*rendered == test::member_text(item, "expected"));
    } else {
      CHECK(rendered.has_error());
    }
    ++count;
  }
  REQUIRE(count > 500);
}

TEST_CASE("chat templates of real models render as transformers does") {
  const auto dir = test::shared_data_dir() / "chat_templates";
  if (!std::filesystem::exists(dir)) SKIP_TEST("the shared data folder is absent");
  size_t count = 0;
  for (const auto& model : std::filesystem::directory_iterator(dir)) {
    const auto made = ChatTemplate::load(model.path());
    if (made.has_error()) FAIL(made.error().message);
    for (const auto& file : std::filesystem::directory_iterator(model.path() / "cases")) {
      CAPTURE(file.path().string());
      simdjson::dom::parser parser;
      const element given = parser.load(file.path().string())["input"];
      const std::string messages = test::member_json(given, "messages");
      const std::string tools = test::member_json(given, "tools");
      const std::string everything = simdjson::to_string(given);
      ChatInput input;
      input.messages_json = messages;
      input.tools_json = tools;
      input.kwargs_json = everything;
      const auto rendered = (*made)->render(input);
      if (rendered.has_error()) FAIL(rendered.error().message);
      const auto expected = model.path() / "expected" / file.path().filename().replace_extension(".txt");
      CHECK(*rendered == test::read_file(expected));
      ++count;
    }
  }
  REQUIRE(count == 27);
}

TEST_CASE("errors of a template name its line") {
  CHECK(error_of("a\nb\n{{ missing.x }}") == "chat template, line 3: 'missing' is undefined");
  CHECK(error_of("\n{% if x %}\n{% endfi %}") == "chat template, line 3: Encountered unknown tag 'endfi'");
  CHECK(error_of("{% for x in [1] %}\n\n{{ raise_exception('roles must alternate') }}{% endfor %}") ==
        "chat template, line 3: roles must alternate");
  CHECK(error_of("x\n\n{{ 'never closed }}") == "chat template, line 3: a string does not end");
  CHECK(error_of("{{ d.a.b }}", R"({"d": {}})") == "chat template, line 1: 'dict object' has no attribute 'a'");
  CHECK(error_of("\n{{ 'a' | frobnicate }}") == "chat template, line 2: No filter named 'frobnicate'.");
  CHECK(error_of("{% include 'x' %}") == "chat template, line 1: Encountered unknown tag 'include'");
  const auto unparsable = ChatTemplate::from_source("{% if %}");
  REQUIRE(unparsable.has_error());
  CHECK(unparsable.error().code == ErrorCode::kData);
}

TEST_CASE("hostile templates end with an error") {
  const auto repeated = [](std::string_view text, size_t count) {
    std::string out;
    for (size_t i = 0; i < count; ++i) out += text;
    return out;
  };
  const std::string nested_loops = repeated("{% for a in range(100000) %}", 4) + repeated("{% endfor %}", 4);
  CHECK(error_of(nested_loops).find("than it may") != std::string::npos);
  CHECK(error_of("{{ 'a' * 10000000000 }}").find("memory") != std::string::npos);
  CHECK(
      error_of("{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}")
          .find("memory") != std::string::npos);
  CHECK(error_of("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}").find("recursion") != std::string::npos);
  CHECK(error_of("{% set l = [1] %}{% set _ = l.append(l) %}{{ l }}").find("nested") != std::string::npos);
  CHECK(error_of("{% set l = [1] %}{% for x in l %}{% set _ = l.append(x) %}{% endfor %}{{ l|length }}") ==
        "rendered: 2");
  CHECK(error_of("{{ " + repeated("(", 5000) + "1" + repeated(")", 5000) + " }}").find("deep") != std::string::npos);
  CHECK(error_of(repeated("{% if 1 %}", 5000)).find("deep") != std::string::npos);
  CHECK(error_of("{{ 1" + repeated(" + 1", 5000) + " }}").find("operators") != std::string::npos);
  CHECK(error_of("{{ x" + repeated(".y", 5000) + " }}").find("operators") != std::string::npos);
  CHECK(error_of("{{ x" + repeated("|upper", 5000) + " }}").find("operators") != std::string::npos);
  CHECK(error_of("{{ 9223372036854775807 + 1 }}").find("overflow") != std::string::npos);
  CHECK(error_of("{{ (-9223372036854775807 - 1) // -1 }}").find("overflow") != std::string::npos);
  CHECK(error_of("{{ ('a' * 1000000 ~ 'b') in ('a' * 100000000) }}").find("may") != std::string::npos);
  CHECK(error_of("{{ x }}", repeated("[", 2000)).find("chat template") == 0);
  // A value of 2^60 leaves, many of which are one object.
  const std::string shared = "{% set a = [0] %}{% set b = [0] %}{% set d = {'k': 0} %}" +
                             repeated("{% set a = [a, a] %}{% set b = [b, b] %}{% set d = {'k': d, 'l': d} %}", 60);
  for (const char* use : {"a == b", "a in [b]", "a < b", "[a, b] | unique | list", "d == d", "a", "d", "a is lower",
                          "a | tojson", "{(a,): 1}[(b,)]"}) {
    INFO(use);
    const std::string error = error_of(shared + "{{ " + use + " }}");
    CHECK(error.find("chat template, line 1") == 0);
  }
  // Work on long strings that makes nothing new.
  const std::string strings = "{% set s = 'a' * 3000000 %}{% set t = 'a' * 3000000 %}{% set p = ' ' * 3000000 %}";
  for (const char* use : {"s == t", "s in [t]", "[s, t] | sort", "s is eq t", "s.isalpha()", "s is lower",
                          "s.startswith(t)", "p | trim", "[s] == [t]"}) {
    INFO(use);
    const std::string loop = "{% for i in range(100000) %}{% set x = " + std::string(use) + " %}{% endfor %}";
    CHECK(error_of(strings + loop).find("it may") != std::string::npos);
  }
}

TEST_CASE("undefined and tools and special tokens match transformers") {
  const auto made = ChatTemplate::from_source(
      "{{ bos_token }}|{{ tools is none }}|{{ documents is none }}|{{ add_generation_prompt }}|{{ pad_token is defined "
      "}}",
      R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>"})");
  REQUIRE(made.has_value());
  ChatInput input;
  input.messages_json = "[]";
  input.add_generation_prompt = true;
  CHECK((*made)->render(input).value() == "<s>|True|True|True|False");
}

TEST_CASE("named templates: tools choose tool_use") {
  const auto made = ChatTemplate::from_source(
      "", R"({"chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]})");
  REQUIRE(made.has_value());
  ChatInput input;
  input.messages_json = "[]";
  CHECK((*made)->render(input).value() == "D");
  input.tools_json = "[]";
  CHECK((*made)->render(input).value() == "T");
  input.template_name = "rag";
  CHECK((*made)->render(input).error().message == "chat template: there is no template named 'rag'");
  CHECK(ChatTemplate::from_source("", "{}").error().code == ErrorCode::kNotFound);
}

TEST_CASE("continue_final_message ends the prompt with the message") {
  const auto made =
      ChatTemplate::from_source("{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}<end>\n{% endfor %}");
  REQUIRE(made.has_value());
  ChatInput input;
  input.continue_final_message = true;
  input.messages_json = R"([{"role": "user", "content": "Sure"}, {"role": "assistant", "content": "Sure, "}])";
  CHECK((*made)->render(input).value() == "<user>Sure<end>\n<assistant>Sure,");
  input.messages_json = R"([{"role": "user", "content": [{"type": "image"}]}])";
  CHECK((*made)->render(input).error().message.find("no text") != std::string::npos);
}

TEST_CASE("continue_final_message is linear for near matches") {
  const auto made =
      ChatTemplate::from_source("{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}");
  REQUIRE(made.has_value());
  const auto outcome = [&](const std::string& user, const std::string& assistant) {
    const std::string messages =
        R"([{"role": "user", "content": ")" + user + R"("}, {"role": "assistant", "content": ")" + assistant + R"("}])";
    ChatInput input;
    input.continue_final_message = true;
    input.messages_json = messages;
    const auto rendered = (*made)->render(input);
    return rendered.has_error() ? rendered.error().message : *rendered;
  };
  const std::string many(10 << 20, 'a');
  const std::string half(5 << 20, 'a');
  CHECK(outcome(many, half + "</think>x").find("does not show") != std::string::npos);
  CHECK(outcome(many, "b" + half + "</think>x").find("does not show") != std::string::npos);
  const bool is_whole = outcome(many, half) == many + half;
  CHECK(is_whole);
  CHECK(outcome("xyxyx", "yx") == "xyxyxyx");
  CHECK(outcome("xyxyx", " ") == "xyxyx ");
}

TEST_CASE("strftime_now formats the clock of the caller") {
  const auto made = ChatTemplate::from_source("{{ strftime_now('%d %B %Y') }}{{ strftime_now('') }}");
  REQUIRE(made.has_value());
  ChatInput input;
  input.messages_json = "[]";
  input.now.tm_year = 124;
  input.now.tm_mon = 6;
  input.now.tm_mday = 26;
  CHECK((*made)->render(input).value() == "26 July 2024");
}
