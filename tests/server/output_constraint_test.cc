#include "server/output_constraint.h"

#include <catch2/catch.hpp>
#include <random>

#include "server/call_fixtures.h"
#include "server/constraint_source.h"
#include "server/schema_check.h"

using namespace millrace;
using namespace millrace::server;
using namespace millrace::test;
using text::ToolFormat;

TEST_CASE("required calls are written as the parser reads them") {
  std::mt19937_64 random(5);
  simdjson::dom::parser schemas;
  const simdjson::dom::element schema = schemas.parse(std::string_view(kSchema));
  const std::vector<std::string> names = {"look", "look_at", "say.hi-2"};
  std::vector<openai::Tool> tools;
  for (const std::string& name : names) tools.push_back(tool(name));
  for (const ToolFormat format : all_formats()) {
    for (const bool is_named : {false, true}) {
      for (const bool is_begun : {false, true}) {
        OutputConstraint constraint = calling(format, is_named ? std::vector{tools[1]} : tools);
        constraint.calls->allow_parallel = !is_named;
        if (is_begun) constraint.prefix = text::tool_call_prefix(format, is_named ? names[1] : "");
        const GrammarPtr grammar = grammar_of(constraint);
        size_t most = 0;
        for (int i = 0; i < 20; ++i) {
          const auto [text, is_whole] = random_text(grammar, random, 10'000);
          REQUIRE(is_whole);
          INFO(text::to_string(format) << " " << constraint.prefix << "|" << text);
          const text::OutputPart answer = parse(constraint, text);
          CHECK(answer.content.empty());
          REQUIRE(!answer.calls.empty());
          if (is_named) CHECK(answer.calls.size() == 1);
          most = std::max(most, answer.calls.size());
          for (const text::ToolCallPart& call : answer.calls) {
            CHECK(std::ranges::find(names, call.name) != names.end());
            if (is_named) CHECK(call.name == names[1]);
            simdjson::dom::parser parser;
            CHECK(matches(parser.parse(call.arguments), schema, schema));
          }
        }
        CHECK((most > 1) == (!is_named && !allows_one(format)));
      }
    }
  }
}

TEST_CASE("in free text a call tag begins a call") {
  for (const ToolFormat format : all_formats()) {
    const GrammarPtr grammar = grammar_of(calling(format, {tool("f"), tool("g")}, false));
    const std::string calls = two_calls(format);
    INFO(text::to_string(format));
    CHECK(matches(grammar, ""));
    CHECK(matches(grammar, "No <tool>, [TOOLS] or <｜tool▁call｜> here, Ω; "));
    CHECK(matches(grammar, calls));
    const bool is_whole = text::row_of(format).written.front().is_whole_output;
    if (!is_whole) CHECK(matches(grammar, "Let me see.\n" + calls));
    const std::string arguments = written_arguments(text::row_of(format).written.front(), "x", "");
    CHECK(!matches(grammar, replaced(calls, arguments, replaced(arguments, "at", "to"))));
    CHECK(!matches(grammar, replaced(calls, arguments, replaced(arguments, "x", "z"))));
    CHECK(!matches(grammar, calls.substr(0, calls.size() - 1)));
    CHECK(!matches(grammar, calls + " And so on."));
  }
}

TEST_CASE("without tools no call is written") {
  for (const ToolFormat format : all_formats()) {
    INFO(text::to_string(format));
    const GrammarPtr grammar = grammar_of(calling(format, {}, false));
    CHECK(matches(grammar, ""));
    CHECK(matches(grammar, "No <tool>, [TOOLS] or <｜tool▁call｜> here, Ω; "));
    CHECK_FALSE(matches(grammar, two_calls(format)));
  }
}

TEST_CASE("without several calls there is one") {
  for (const ToolFormat format : all_formats()) {
    if (allows_one(format)) continue;
    OutputConstraint constraint = calling(format, {tool("f"), tool("g")});
    INFO(text::to_string(format));
    CHECK(matches(grammar_of(constraint), two_calls(format)));
    constraint.calls->allow_parallel = false;
    CHECK(!matches(grammar_of(constraint), two_calls(format)));
  }
}

TEST_CASE("a form beside tools leaves the choice between the two") {
  OutputConstraint constraint = calling(ToolFormat::kHermes, {tool("f"), tool("g")}, false);
  constraint.response_format =
      openai::ResponseFormat{openai::ResponseFormat::Kind::kRegex, {"[0-9]+"}, "regex", "regex"};
  const GrammarPtr either = grammar_of(constraint);
  CHECK(matches(either, "42"));
  CHECK(matches(either, two_calls(ToolFormat::kHermes)));
  CHECK(!matches(either, "Let me see."));
  constraint.calls->must_call = true;
  CHECK(!matches(grammar_of(constraint), "42"));
  CHECK(matches(grammar_of(constraint), two_calls(ToolFormat::kHermes)));
}

TEST_CASE("reasoning goes before calls") {
  OutputConstraint constraint = calling(ToolFormat::kHermes, {tool("f"), tool("g")});
  const std::string calls = two_calls(ToolFormat::kHermes);
  constraint.reasoning = ReasoningMode::kOpened;
  CHECK(matches(grammar_of(constraint), "I <tool_call> f.</think>\n\n" + calls));
  CHECK(!matches(grammar_of(constraint), calls));
  constraint.reasoning = ReasoningMode::kOptional;
  CHECK(matches(grammar_of(constraint), "<think>Hm.</think>\n\n" + calls));
  CHECK(matches(grammar_of(constraint), calls));
  CHECK(!matches(grammar_of(constraint), "Hm.</think>" + calls));
}

TEST_CASE("harmony has reasoning and content in channels") {
  OutputConstraint constraint = calling(ToolFormat::kHarmony, {tool("f")});
  constraint.reasoning = ReasoningMode::kOptional;
  constraint.reasoning_format = text::ReasoningFormat::kHarmony;
  const std::string reasoning = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant";
  const std::string call = two_calls(ToolFormat::kHarmony);
  CHECK(matches(grammar_of(constraint), reasoning + call));
  CHECK(matches(grammar_of(constraint), call));
  CHECK(!matches(grammar_of(constraint), reasoning + "<|channel|>final<|message|>No."));
  constraint.calls->must_call = false;
  const auto free = grammar_of(constraint);
  CHECK(matches(free, reasoning + "<|channel|>final<|message|>No."));
  CHECK(matches(free, " to=functions.f<|channel|>commentary json<|message|>{\"at\": \"x\"}"));
  CHECK(!matches(free, " to=functions.f<|channel|>commentary json<|message|>{\"at\": \"z\"}"));
  constraint.calls.reset();
  constraint.response_format =
      openai::ResponseFormat{openai::ResponseFormat::Kind::kRegex, {"[0-9]+"}, "regex", "regex"};
  CHECK(matches(grammar_of(constraint), reasoning + "<|channel|>final<|message|>42"));
  CHECK(!matches(grammar_of(constraint), "42"));
  constraint.reasoning_format = text::ReasoningFormat::kCommand;
  CHECK(matches(grammar_of(constraint), "<|START_RESPONSE|>42<|END_RESPONSE|>"));
  CHECK(matches(grammar_of(constraint), "<|START_THINKING|>Hm.<|END_THINKING|>42"));
}

TEST_CASE("different constraints have different keys") {
  std::vector<OutputConstraint> all;
  all.push_back(calling(ToolFormat::kHermes, {tool("f")}));
  all.push_back(calling(ToolFormat::kMistral, {tool("f")}));
  all.push_back(calling(ToolFormat::kHermes, {tool("f")}));
  all.back().reasoning = ReasoningMode::kOptional;
  all.back().reasoning_format = text::ReasoningFormat::kCommand;
  all.push_back(calling(ToolFormat::kHermes, {tool("f")}, false));
  all.push_back(calling(ToolFormat::kHermes, {tool("f", kSchema, false)}));
  all.push_back(calling(ToolFormat::kHermes, {tool("f", "")}));
  all.push_back(calling(ToolFormat::kHermes, {tool("g")}));
  all.push_back(calling(ToolFormat::kHermes, {tool("f"), tool("g")}));
  all.push_back(calling(ToolFormat::kHermes, {tool("f")}));
  all.back().calls->allow_parallel = false;
  all.push_back(calling(ToolFormat::kHermes, {tool("f")}));
  all.back().prefix = "<tool_call>";
  all.push_back(calling(ToolFormat::kHermes, {tool("f")}));
  all.back().reasoning = ReasoningMode::kOptional;
  all.push_back(calling(ToolFormat::kHermes, {tool("f")}));
  all.back().response_format = openai::ResponseFormat{openai::ResponseFormat::Kind::kRegex, {"a"}, "regex", "regex"};
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < i; ++j) CHECK(encode_constraint(all[i]) != encode_constraint(all[j]));
  }
}
