#include "server/argument_grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "base/json.h"
#include "server/call_fixtures.h"
#include "server/constraint_source.h"
#include "server/openai/custom_input.h"
#include "server/openai/custom_tools.h"

using namespace millrace;
using namespace millrace::server;
using namespace millrace::test;
using text::ToolFormat;

namespace {

/// Returns a custom tool whose input is held to a grammar.
openai::Tool custom_tool(std::string name, openai::InputGrammar input) {
  openai::Tool custom = tool(std::move(name), std::string(openai::custom_parameters()));
  custom.input = std::move(input);
  return custom;
}

openai::InputGrammar lark(std::string definition) {
  return {.syntax = openai::InputGrammar::Syntax::kLark, .definition = std::move(definition)};
}

/// Returns the input that a custom tool gets.
std::string input_of(const text::ToolCallPart& call) {
  openai::CustomInput input;
  std::string text = input.push(call.arguments);
  text += input.finish();
  return text;
}

/// Returns what the format ends a text without escapes at; nothing where it has escapes.
std::vector<std::string_view> ends_of_text(const text::ToolCallSyntax& syntax) {
  if (syntax.notation == text::ArgumentNotation::kParameters) return syntax.value_ends();
  if (syntax.dialect == nullptr || syntax.dialect->quote.empty()) return {};
  return {syntax.dialect->quote};
}

/// Returns a text of whole and cut ends, and of what may stand around them.
std::string text_near(const std::vector<std::string_view>& ends, std::mt19937_64& random) {
  std::string text = "x";
  for (size_t count = 1 + random() % 4; count > 0; --count) {
    const std::string_view end = ends[random() % ends.size()];
    switch (random() % 6) {
      case 0: text += end; break;
      case 1: text += end.substr(0, end.size() - 1); break;
      case 2: text += end.substr(0, 1); break;
      case 3: text += "\n"; break;
      case 4: text += "\""; break;
      default: text += "é"; break;
    }
  }
  return text;
}

/// Checks whether an output is allowed, and that the parser reads the arguments of its call if it is.
void check_read(const OutputConstraint& constraint, const GrammarPtr& grammar, std::string_view output, bool is_allowed,
                std::string_view arguments) {
  REQUIRE(matches(grammar, output) == is_allowed);
  if (!is_allowed) return;
  const text::OutputPart read = parse(constraint, output);
  REQUIRE(read.calls.size() == 1);
  CHECK(read.content.empty());
  CHECK(read.calls[0].arguments == arguments);
}

bool holds_any(std::string_view text, const std::vector<std::string_view>& tags) {
  return std::ranges::any_of(tags, [&](std::string_view tag) { return text.find(tag) != std::string_view::npos; });
}

}  // namespace

TEST_CASE("literals follow the schema of their tool") {
  const char* schema =
      R"({"type":"object","properties":{"name":{"type":"string"},"n":{"type":"integer","maximum":9},)"
      R"("flags":{"type":"array","items":{"type":"boolean"},"maxItems":2},"next":{"$ref":"#/$defs/node"},)"
      R"("kind":{"enum":["a",true,null]},"any":{}},"required":["name"],)"
      R"("$defs":{"node":{"type":"object","properties":{"next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},)"
      R"("required":["next"]}}})";
  const auto python = grammar_of(calling(ToolFormat::kPythonic, {tool("f", schema)}));
  CHECK(matches(python, R"py([f(name="a\"b")])py"));
  CHECK(matches(python, R"py([f(name="a", n=7, flags=[True, False], next={"next": {"next": None}}, kind=None)])py"));
  CHECK(matches(python, R"py([f(name="a", any={"x": [1, None, "y"]})])py"));
  CHECK(!matches(python, R"py([f(n=7)])py"));
  CHECK(!matches(python, R"py([f(name="a", n=70)])py"));
  CHECK(!matches(python, R"py([f(name="a", flags=[True, True, True])])py"));
  CHECK(!matches(python, R"py([f(name="a", flags=[true])])py"));
  CHECK(!matches(python, R"py([f(name="a", kind="b")])py"));
  const auto gemma = grammar_of(calling(ToolFormat::kGemma4, {tool("f", schema)}));
  const std::string q = "<|\"|>";
  CHECK(matches(gemma, "<|tool_call>call:f{flags:[true],kind:" + q + "a" + q + ",name:" + q + "x \"y\"" + q +
                           ",next:{next:null}}<tool_call|>"));
  CHECK(!matches(gemma, "<|tool_call>call:f{flags:[1],name:" + q + "x" + q + "}<tool_call|>"));
  const auto free = grammar_of(calling(ToolFormat::kGemma4, {tool("f", "", false)}));
  CHECK(matches(free, "<|tool_call>call:f{a:{b:[1," + q + "x" + q + "]}}<tool_call|>"));
  CHECK(matches(free, "<|tool_call>call:f{}<tool_call|>"));
  CHECK(!matches(free, "<|tool_call>call:f{a}<tool_call|>"));
  const auto refused = build_grammar(calling(ToolFormat::kPythonic, {tool("say hi", schema)}), SchemaEnforcement::kAll);
  CHECK(refused.error().param == "tools");
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

TEST_CASE("an unknown type is refused where calls must match") {
  const std::vector<const char*> unknown = {
      R"({"type":"object","properties":{"a":{"type":"unknown_type"}},"required":["a"]})",
      R"({"type":"dict","properties":{"a":{}}})",
      R"({"type":"object","properties":{"a":{"type":["string","nil"]}}})",
      R"({"type":"object","properties":{"a":{"type":"array","items":{"anyOf":[{"type":"integer"},{"type":7}]}}}})",
      R"({"type":"object","properties":{"a":{"$ref":"#/$defs/b"}},"$defs":{"b":{"enum":["x"],"type":"str"}}})",
      R"({"type":"object","allOf":[{"unevaluatedProperties":false}],"properties":{"a":{"type":"float"}}})",
  };
  for (const char* schema : unknown) {
    INFO(schema);
    for (const ToolFormat format : all_formats()) {
      for (const SchemaEnforcement enforcement : {SchemaEnforcement::kAll, SchemaEnforcement::kStrict}) {
        const auto forced = build_grammar(calling(format, {tool("f", schema, false)}), enforcement);
        REQUIRE(forced.has_error());
        CHECK(forced.error().status == 400);
        CHECK(forced.error().param == "tools");
        CHECK_THAT(forced.error().message, Catch::StartsWith("tools[0].function.parameters: schema"));
      }
      const auto strict = build_grammar(calling(format, {tool("f", schema)}, false), SchemaEnforcement::kAll);
      REQUIRE(strict.has_error());
      CHECK(strict.error().param == "tools");
    }
    const auto free = build_grammar(calling(ToolFormat::kHermes, {tool("f", schema, false), tool("g")}, false),
                                    SchemaEnforcement::kAll);
    CHECK(free.has_value());
  }
  // Names of members, values and annotations are no types.
  const char* known = R"({"type":"object","properties":{"type":{"type":["string","null"],"default":{"type":"x"}},)"
                      R"("of":{"enum":[{"type":"y"}]}},"examples":[{"type":"z"}],"required":["type"]})";
  for (const ToolFormat format : all_formats()) {
    CHECK(build_grammar(calling(format, {tool("f", known, false)}), SchemaEnforcement::kAll).has_value());
  }
}

TEST_CASE("unquoted values are texts or choices or JSON") {
  const char* schema =
      R"({"type":"object","properties":{"code":{"type":"string"},"id":{"type":"string","pattern":"^[a-z]+$",)"
      R"("maxLength":3},"unit":{"enum":["C","F"]},)"
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
  CHECK(matches(grammar, call("<parameter=id>\nabc\n</parameter>\n" + code)));
  CHECK(!matches(grammar, call("<parameter=id>\nabcd\n</parameter>\n" + code)));
  CHECK(!matches(grammar, call("<parameter=id>\nA\n</parameter>\n" + code)));
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

TEST_CASE("an input held to a grammar is written as it is read") {
  constexpr const char* kLines = "start: line+\nline: /[ab\"\\\\]{1,3}/ LF\n%import common.LF";
  const GrammarPtr language = grammar_from_lark(kLines).value();
  const openai::InputGrammar regex{.syntax = openai::InputGrammar::Syntax::kRegex,
                                   .definition = "([ab\"\\\\]{1,3}\\n)+"};
  std::mt19937_64 random(7);
  for (const ToolFormat format : all_formats()) {
    for (const openai::InputGrammar& input : {lark(kLines), regex}) {
      INFO(text::to_string(format) << " " << input.definition);
      const OutputConstraint constraint = calling(format, {custom_tool("patch", input)});
      const auto decoded = decode_constraint(encode_constraint(constraint));
      const GrammarPtr grammar = grammar_of(decoded.value());
      for (int i = 0; i < 5; ++i) {
        const RandomText written = random_text(grammar, random, 4000);
        if (!written.is_whole) continue;
        INFO(written.text);
        const text::OutputPart part = parse(constraint, written.text);
        REQUIRE_FALSE(part.calls.empty());
        for (const text::ToolCallPart& call : part.calls) CHECK(matches(language, input_of(call)));
      }
    }
  }
}

TEST_CASE("an input does not hold the tag that ends it") {
  std::mt19937_64 random(11);
  for (const ToolFormat format : all_formats()) {
    const text::ToolCallSyntax& syntax = text::row_of(format).written.front();
    INFO(text::to_string(format));
    std::string letters = "</parmete>\n";
    for (const std::string_view end : ends_of_text(syntax)) letters += end;
    std::string escaped;
    for (const char c : letters) escaped += std::string(c == '/' || c == '|' || c == '"' ? "\\" : "") + c;
    // Nesting, so that the texts are no regular language.
    const std::string nested = fmt::format("start: nest+\nnest: \"(\" nest* \")\" | /[{}]/ | \"</\" /[p|\"<]/",
                                           replaced(escaped, "\n", "\\n"));
    const GrammarPtr language = grammar_from_lark(nested).value();
    const OutputConstraint constraint = calling(format, {custom_tool("patch", lark(nested))});
    const GrammarPtr grammar = grammar_of(constraint);
    for (int i = 0; i < 20; ++i) {
      const RandomText written = random_text(grammar, random, 2000);
      if (!written.is_whole) continue;
      INFO(written.text);
      for (const text::ToolCallPart& call : parse(constraint, written.text).calls) {
        CHECK(matches(language, input_of(call)));
      }
    }
  }
}

TEST_CASE("the patch grammar of Codex holds in every format") {
  constexpr const char* kPatch = "*** Begin Patch\n*** Update File: a\n@@ f(\"<x>\")\n-</p\n+y\n*** End Patch\n";
  for (const ToolFormat format : all_formats()) {
    INFO(text::to_string(format));
    const GrammarPtr grammar = grammar_of(calling(format, {custom_tool("f", lark(kPatchLark))}));
    const text::ToolCallSyntax& syntax = text::row_of(format).written.front();
    std::string input(kPatch);
    if (ends_of_text(syntax).empty()) {
      std::string quoted;
      append_json_string(quoted, kPatch);
      input = quoted.substr(1, quoted.size() - 2);
    }
    const auto output = [&](const std::string& text) {
      return output_of(syntax, call_of(syntax, "f", replaced(written_arguments(syntax, text, ""), "at", "input")));
    };
    CHECK(matches(grammar, output(input)));
    CHECK_FALSE(matches(grammar, output(replaced(input, "+y", "y"))));
  }
}

TEST_CASE("a text without escapes ends where the parser ends it") {
  constexpr const char* kText = R"({"type":"object","properties":{"input":{"type":"string"}},"required":["input"]})";
  std::mt19937_64 random(13);
  for (const ToolFormat format : all_formats()) {
    const text::ToolCallSyntax& syntax = text::row_of(format).written.front();
    const std::vector<std::string_view> ends = ends_of_text(syntax);
    if (ends.empty()) continue;
    const std::vector<openai::Tool> tools = {tool("f", kText), tool("f", "", false),
                                             custom_tool("f", lark("start: /(.|\\n)*/"))};
    for (const openai::Tool& each : tools) {
      const OutputConstraint constraint = calling(format, {each});
      const GrammarPtr grammar = grammar_of(constraint);
      for (int i = 0; i < 100; ++i) {
        const std::string text = text_near(ends, random);
        const std::string arguments = replaced(written_arguments(syntax, text, ""), "at", "input");
        const std::string output = output_of(syntax, call_of(syntax, "f", arguments));
        INFO(text::to_string(format) << " " << output);
        std::string quoted;
        append_json_string(quoted, text);
        check_read(constraint, grammar, output, !holds_any(text, ends), fmt::format(R"({{"input": {}}})", quoted));
      }
    }
  }
}

TEST_CASE("strings in JSON hold no tag that ends the value") {
  constexpr const char* kList =
      R"({"type":"object","properties":{"at":{"type":"array","items":{"type":"string"}}},"required":["at"]})";
  std::mt19937_64 random(17);
  for (const ToolFormat format : all_formats()) {
    const text::ToolCallSyntax& syntax = text::row_of(format).written.front();
    if (syntax.notation != text::ArgumentNotation::kParameters) continue;
    const std::vector<std::string_view> ends = syntax.value_ends();
    const OutputConstraint constraint = calling(format, {tool("f", kList)});
    const GrammarPtr grammar = grammar_of(constraint);
    for (int i = 0; i < 100; ++i) {
      std::string list = "[";
      append_json_string(list, text_near(ends, random));
      list += ']';
      std::string arguments = written_arguments(syntax, list, "");
      if (syntax.tags->has_string_attribute) arguments = replaced(arguments, "\"true\"", "\"false\"");
      const std::string output = output_of(syntax, call_of(syntax, "f", arguments));
      INFO(text::to_string(format) << " " << output);
      check_read(constraint, grammar, output, !holds_any(list, ends), fmt::format(R"({{"at": {}}})", list));
    }
  }
}

TEST_CASE("long strings with bounds in JSON keep their bounds") {
  constexpr const char* kLong =
      R"({"type":"object","properties":{"at":{"type":"array","items":{"type":"string","maxLength":5000}}}})";
  const GrammarPtr grammar = grammar_of(calling(ToolFormat::kQwen3Coder, {tool("f", kLong)}));
  const auto call = [](const std::string& text) {
    return fmt::format("<tool_call>\n<function=f>\n<parameter=at>\n[\"{}\"]\n</parameter>\n</function>\n</tool_call>",
                       text);
  };
  CHECK(matches(grammar, call("\\u003cp>" + std::string(4997, 'x'))));
  CHECK_FALSE(matches(grammar, call(std::string(5001, 'x'))));
  CHECK_FALSE(matches(grammar, call("x</parameter>")));
}

TEST_CASE("a nested input of any characters is held in every format") {
  constexpr const char* kNest = "start: nest+\nnest: \"(\" /[^()]*/ nest* \")\"";
  for (const ToolFormat format : all_formats()) {
    INFO(text::to_string(format));
    const text::ToolCallSyntax& syntax = text::row_of(format).written.front();
    const GrammarPtr grammar = grammar_of(calling(format, {custom_tool("f", lark(kNest))}));
    const auto output = [&](std::string_view input) {
      return output_of(syntax, call_of(syntax, "f", replaced(written_arguments(syntax, input, ""), "at", "input")));
    };
    CHECK(matches(grammar, output("(a <b é(c))(d)")));
    CHECK_FALSE(matches(grammar, output("(a (c)")));
  }
}

TEST_CASE("a text may lack the line feed before its end") {
  const OutputConstraint constraint = calling(ToolFormat::kQwen3Coder, {tool("f", "", false)});
  const std::string output = "<tool_call>\n<function=f>\n<parameter=a>\nx</parameter>\n</function>\n</tool_call>";
  CHECK(matches(grammar_of(constraint), output));
  CHECK(parse(constraint, output).calls.at(0).arguments == R"({"a": "x"})");
}

TEST_CASE("a choice that its end would cut is refused") {
  const char* schema = R"({"type":"object","properties":{"a":{"enum":["x","y</parameter>z"]}}})";
  const auto refused = build_grammar(calling(ToolFormat::kQwen3Coder, {tool("f", schema)}), SchemaEnforcement::kAll);
  CHECK(refused.error().message ==
        "tools[0].function.parameters: schema.properties.a: calls of this model cannot have the value "
        "'y</parameter>z'");
}

TEST_CASE("a lax tool that cannot be written leaves the others") {
  constexpr const char* kNames = R"({"type":"object","properties":{"x":{},"t":{"type":"string"},"a=>\n:b":{}}})";
  for (const ToolFormat format : all_formats()) {
    INFO(text::to_string(format));
    const std::vector<openai::Tool> tools = {tool("h", kNames, false), tool("f"), tool("g"), tool("i", "", false)};
    const GrammarPtr grammar = grammar_of(calling(format, tools));
    CHECK(matches(grammar, two_calls(format)));
  }
}
