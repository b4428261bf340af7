#include "server/output_constraint.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <random>

#include "grammar/grammar_fixtures.h"
#include "server/schema_check.h"
#include "text/tool_calls/output_parser.h"

using namespace millrace;
using namespace millrace::server;
using namespace millrace::test;
using text::ToolFormat;

namespace {

constexpr ToolFormat kFormats[] = {ToolFormat::kHermes, ToolFormat::kLlama3, ToolFormat::kMistral,
                                   ToolFormat::kDeepSeekV3, ToolFormat::kQwen3Coder};
constexpr const char* kSchema =
    R"({"type":"object","properties":{"at":{"enum":["x","y","a \"b\""]},"far":{"type":"boolean"}},)"
    R"("required":["at"],"additionalProperties":false})";

openai::Tool tool(std::string name, std::string parameters = kSchema, bool is_strict = true) {
  return {std::move(name), std::move(parameters), is_strict, "tools[0].function"};
}

OutputConstraint calling(ToolFormat format, std::vector<openai::Tool> tools, bool must_call = true) {
  OutputConstraint constraint;
  constraint.calls = ToolCallConstraint{.format = format, .tools = std::move(tools), .must_call = must_call};
  return constraint;
}

/// Returns a vocabulary of bytes, where token 256 ends an answer.
GrammarPtr grammar_of(const OutputConstraint& constraint, SchemaEnforcement arguments = SchemaEnforcement::kAll) {
  return grammar::Grammar::compile(build_grammar(constraint, arguments).value(), byte_vocabulary(), {kEnd}).value();
}

text::OutputPart parse(const OutputConstraint& constraint, std::string_view text) {
  text::OutputFormat format;
  format.tools = constraint.calls->format;
  auto types = std::make_shared<text::ParameterTypes>();
  for (const openai::Tool& tool : constraint.calls->tools) types->add(tool.name, tool.parameters);
  format.parameter_types = std::move(types);
  format.splits_reasoning = constraint.reasoning != ReasoningMode::kNone;
  format.begins_in_reasoning = constraint.reasoning == ReasoningMode::kOpened;
  text::OutputParser parser(format);
  text::OutputPart all;
  for (const std::string_view piece : {std::string_view(constraint.prefix), text}) {
    text::OutputPart part;
    parser.push(piece, part);
    all.content += part.content;
    for (text::ToolCallPart& call : part.calls) text::append_call_part(all.calls, std::move(call));
  }
  parser.finish(all);
  CHECK(parser.calls_finished() == all.calls.size());
  return all;
}

/// Returns a constraint on calls of the tools `f` and `g` in one format.
std::string two_calls(ToolFormat format) {
  switch (format) {
    case ToolFormat::kHermes:
      return "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"at\": \"x\"}}\n</tool_call>\n"
             "<tool_call>\n{\"name\": \"g\", \"arguments\": {\"at\": \"y\", \"far\": true}}\n</tool_call>";
    case ToolFormat::kLlama3:
      return "{\"name\": \"f\", \"parameters\": {\"at\": \"x\"}}; "
             "{\"name\": \"g\", \"parameters\": {\"at\": \"y\", \"far\": true}}";
    case ToolFormat::kMistral:
      return "[TOOL_CALLS]f[ARGS]{\"at\": \"x\"}[TOOL_CALLS]g[ARGS]{\"at\": \"y\", \"far\": true}";
    case ToolFormat::kQwen3Coder:
      return "<tool_call>\n<function=f>\n<parameter=at>\nx\n</parameter>\n</function>\n</tool_call>\n"
             "<tool_call>\n<function=g>\n<parameter=at>\ny\n</parameter>\n<parameter=far>\ntrue\n</parameter>\n"
             "</function>\n</tool_call>";
    case ToolFormat::kDeepSeekV3: break;
  }
  return "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"at\": "
         "\"x\"}\n```<｜tool▁call▁end｜>\n"
         "<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{\"at\": \"y\", \"far\": true}\n```<｜tool▁call▁end｜>"
         "<｜tool▁calls▁end｜>";
}

std::string replaced(std::string text, std::string_view what, std::string_view by) {
  const size_t at = text.find(what);
  REQUIRE(at != std::string::npos);
  return text.replace(at, what.size(), by);
}

}  // namespace

TEST_CASE("required calls are written as the parser reads them") {
  std::mt19937_64 random(5);
  simdjson::dom::parser schemas;
  const simdjson::dom::element schema = schemas.parse(std::string_view(kSchema));
  const std::vector<std::string> names = {"look", "look_at", "say \"hi\""};
  std::vector<openai::Tool> tools;
  for (const std::string& name : names) tools.push_back(tool(name));
  for (const ToolFormat format : kFormats) {
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
        CHECK((most > 1) == !is_named);
      }
    }
  }
}

TEST_CASE("in free text a call tag begins a call") {
  for (const ToolFormat format : kFormats) {
    const GrammarPtr grammar = grammar_of(calling(format, {tool("f"), tool("g")}, false));
    const std::string calls = two_calls(format);
    INFO(text::to_string(format));
    CHECK(matches(grammar, ""));
    CHECK(matches(grammar, "No <tool>, [TOOLS] or <｜tool▁call｜> here, Ω; "));
    CHECK(matches(grammar, calls));
    if (format != ToolFormat::kLlama3) CHECK(matches(grammar, "Let me see.\n" + calls));
    CHECK(!matches(grammar, replaced(calls, "at", "to")));
    CHECK(!matches(grammar, replaced(calls, "x", "z")));
    CHECK(!matches(grammar, calls.substr(0, calls.size() - 1)));
    CHECK(!matches(grammar, calls + " And so on."));
  }
}

TEST_CASE("without several calls there is one") {
  for (const ToolFormat format : kFormats) {
    OutputConstraint constraint = calling(format, {tool("f"), tool("g")});
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

TEST_CASE("arguments of lax tools follow their schema where possible") {
  const auto call = [](std::string_view arguments) {
    return fmt::format("<tool_call>\n{{\"name\": \"f\", \"arguments\": {}}}\n</tool_call>", arguments);
  };
  const auto of = [](const openai::Tool& tool, SchemaEnforcement enforcement) {
    return grammar_of(calling(ToolFormat::kHermes, {tool}), enforcement);
  };
  const std::string other = call("{\"other\": [1]}");
  CHECK(!matches(of(tool("f", kSchema, false), SchemaEnforcement::kAll), other));
  CHECK(matches(of(tool("f", kSchema, false), SchemaEnforcement::kStrict), other));
  CHECK(!matches(of(tool("f", kSchema, true), SchemaEnforcement::kStrict), other));
  const char* cannot = R"({"type":"object","allOf":[{"unevaluatedProperties":false}]})";
  CHECK(matches(of(tool("f", cannot, false), SchemaEnforcement::kAll), other));
  CHECK(!matches(of(tool("f", cannot, false), SchemaEnforcement::kAll), call("[1]")));
  const char* partly = R"({"type":"object","properties":{"at":{"enum":["x"],"vendorHint":1}},"minProperties":1,)"
                       R"("required":["at"]})";
  CHECK(matches(of(tool("f", partly, false), SchemaEnforcement::kAll), call(R"({"at":"x"})")));
  CHECK(!matches(of(tool("f", partly, false), SchemaEnforcement::kAll), call(R"({"at":"y"})")));
  CHECK(!matches(of(tool("f", partly, false), SchemaEnforcement::kAll), other));
  const auto refused = build_grammar(calling(ToolFormat::kHermes, {tool("f", cannot, true)}), SchemaEnforcement::kAll);
  CHECK(refused.error().param == "tools");
  CHECK_THAT(refused.error().message,
             Catch::StartsWith("tools[0].function.parameters: ") && Catch::Contains("'unevaluatedProperties'"));
}

TEST_CASE("unquoted values are texts or choices or JSON") {
  const char* schema =
      R"({"type":"object","properties":{"code":{"type":"string","maxLength":3},"unit":{"enum":["C","F"]},)"
      R"("days":{"$ref":"#/$defs/days"},"note":{"type":["string","null"]}},"required":["code"],)"
      R"("$defs":{"days":{"type":"array","items":{"type":"integer"}}}})";
  const auto call = [](std::string_view parameters) {
    return fmt::format("<tool_call>\n<function=f>\n{}</function>\n</tool_call>", parameters);
  };
  OutputConstraint constraint = calling(ToolFormat::kQwen3Coder, {tool("f", schema)});
  const auto grammar = grammar_of(constraint);
  const std::string code = "<parameter=code>\nif (a < b) {\n  return </param>;\n}\n</parameter>\n";
  const std::string all = code + "<parameter=unit>\nF\n</parameter>\n<parameter=days>\n[1, 2]\n</parameter>\n" +
                          "<parameter=note>\nnull\n</parameter>\n";
  CHECK(matches(grammar, call(code)));
  CHECK(matches(grammar, call(all)));
  CHECK(!matches(grammar, call("")));
  CHECK(!matches(grammar, call(code + code)));
  CHECK(!matches(grammar, call(replaced(all, "F", "K"))));
  CHECK(!matches(grammar, call(replaced(all, "[1, 2]", "[1, x]"))));
  CHECK(!matches(grammar, call(replaced(all, "=note", "=more"))));
  CHECK(parse(constraint, call(all)).calls.at(0).arguments ==
        R"({"code": "if (a < b) {\n  return </param>;\n}", "unit": "F", "days": [1,2], "note": null})");
  const auto refusal = [&](const char* other) {
    constraint.calls->tools[0] = tool("f", other);
    return build_grammar(constraint, SchemaEnforcement::kAll).error().message;
  };
  CHECK_THAT(
      refusal(R"({"type":"object","properties":{"a":{"type":"string"}},"allOf":[{"unevaluatedProperties":false}]})"),
      Catch::Contains("'unevaluatedProperties'"));
  CHECK(refusal(R"({"type":"object","properties":{"a>b":{"type":"string"}}})") ==
        "tools[0].function.parameters: calls of this model cannot have a parameter 'a>b'");
  constraint.calls->tools[0] = tool("f", "", false);
  CHECK(matches(grammar_of(constraint), call(all)));
  CHECK(matches(grammar_of(constraint), call("")));
  CHECK(!matches(grammar_of(constraint), call("text")));
}

TEST_CASE("different constraints have different keys") {
  std::vector<OutputConstraint> all;
  all.push_back(calling(ToolFormat::kHermes, {tool("f")}));
  all.push_back(calling(ToolFormat::kMistral, {tool("f")}));
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
    for (size_t j = 0; j < i; ++j) CHECK(all[i].key() != all[j].key());
  }
}
