#include "server/output_constraint.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <random>

#include "server/constraint_source.h"
#include "grammar/grammar_fixtures.h"
#include "server/openai/custom_input.h"
#include "server/openai/custom_tools.h"
#include "server/schema_check.h"
#include "text/tool_calls/output_parser.h"
#include "text/tool_calls/tool_formats.h"

using namespace millrace;
using namespace millrace::server;
using namespace millrace::test;
using text::ToolFormat;

namespace {

std::vector<ToolFormat> all_formats() {
  std::vector<ToolFormat> formats;
  for (size_t i = 0; i < text::kToolFormatCount; ++i) formats.push_back(static_cast<ToolFormat>(i));
  return formats;
}
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
  if (constraint.reasoning != ReasoningMode::kNone) format.reasoning = constraint.reasoning_format;
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

/// Returns the arguments at and far, the latter unless it is empty, as a syntax writes them.
std::string written_arguments(const text::ToolCallSyntax& syntax, std::string_view at, std::string_view far) {
  using enum text::ArgumentNotation;
  if (syntax.notation == kParameters) {
    const text::ParameterTags& tags = *syntax.tags;
    const std::string open = tags.has_string_attribute ? " string=\"false\">" : std::string(tags.value_open);
    std::string out = fmt::format("{}at{}{}{}{}", tags.open, tags.key_end, tags.value_open, at, tags.value_end);
    if (!far.empty()) out += fmt::format("{}far{}{}{}{}", tags.open, tags.key_end, open, far, tags.value_end);
    return out;
  }
  if (syntax.notation == kLiterals) {
    const text::LiteralDialect& dialect = *syntax.dialect;
    const std::string_view quote = dialect.quote.empty() ? "\"" : dialect.quote;
    const std::string_view word = far == "true" ? dialect.true_word : dialect.false_word;
    std::string out = fmt::format("{}at{}{}{}{}", dialect.open, dialect.key_end, quote, at, quote);
    if (!far.empty()) out += fmt::format("{}far{}{}", dialect.separator, dialect.key_end, word);
    return out + dialect.close;
  }
  return far.empty() ? fmt::format(R"({{"at": "{}"}})", at) : fmt::format(R"({{"at": "{}", "far": {}}})", at, far);
}

/// Returns calls of the tools `f` and `g` in a format, or of `f` alone where there is one call only.
std::string two_calls(ToolFormat format) {
  const text::ToolCallSyntax& syntax = text::row_of(format).written.front();
  std::string id(syntax.id_open);
  if (syntax.id == text::CallIdSyntax::kNumber) id += "12";
  if (syntax.id == text::CallIdSyntax::kNineCharacters) id += "a1b2c3d4e";
  const auto call = [&](std::string_view name, std::string_view at, std::string_view far) {
    return fmt::format("{}{}{}{}{}{}{}{}{}", syntax.call_open, syntax.id_is_first ? id : "", syntax.before_name, name,
                       syntax.id_is_first ? "" : id, syntax.before_arguments, written_arguments(syntax, at, far),
                       syntax.after_arguments, syntax.call_close);
  };
  std::string text = fmt::format("{}{}{}", syntax.section_open, syntax.list_open, call("f", "x", ""));
  if (!syntax.allows_one_call) text += std::string(syntax.separator) + call("g", "y", "true");
  return text + std::string(syntax.list_close) + std::string(syntax.section_close);
}

/// Returns whether an output of the format ends with its first call.
bool allows_one(ToolFormat format) {
  return text::row_of(format).written.front().allows_one_call;
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
  // Members are in the order of their names.
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

TEST_CASE("an input held to a grammar is written as it is read") {
  constexpr const char* kLines = "start: line+\nline: /[ab\"\\\\]{1,3}/ LF\n%import common.LF";
  const GrammarPtr language = grammar_from_lark(kLines).value();
  std::mt19937_64 random(7);
  for (const ToolFormat format : all_formats()) {
    for (const bool is_regex : {false, true}) {
      INFO(text::to_string(format) << " " << is_regex);
      openai::Tool patch = tool("patch", std::string(openai::custom_parameters()));
      patch.input = {.syntax = is_regex ? openai::InputGrammar::Syntax::kRegex : openai::InputGrammar::Syntax::kLark,
                     .definition = is_regex ? "([ab\"\\\\]{1,3}\\n)+" : kLines};
      const OutputConstraint constraint = calling(format, {patch});
      const auto decoded = decode_constraint(encode_constraint(constraint));
      const GrammarPtr grammar = grammar_of(decoded.value());
      for (int i = 0; i < 5; ++i) {
        const RandomText written = random_text(grammar, random, 4000);
        if (!written.is_whole) continue;
        INFO(written.text);
        const text::OutputPart part = parse(constraint, written.text);
        REQUIRE_FALSE(part.calls.empty());
        for (const text::ToolCallPart& call : part.calls) {
          openai::CustomInput input;
          std::string text = input.push(call.arguments);
          text += input.finish();
          CHECK(matches(language, text));
        }
      }
    }
  }
}

TEST_CASE("an input does not hold the tag that ends it") {
  // Nesting, so that the texts are no regular language.
  constexpr const char* kNested = "start: nest+\nnest: \"(\" nest* \")\" | /[<\\/parmete>\\n]+/ | \"</\" /[p|\"<]/";
  const GrammarPtr language = grammar_from_lark(kNested).value();
  std::mt19937_64 random(11);
  for (const ToolFormat format : all_formats()) {
    const text::ToolCallSyntax& syntax = text::row_of(format).written.front();
    INFO(text::to_string(format));
    openai::Tool patch = tool("patch", std::string(openai::custom_parameters()));
    patch.input = {.syntax = openai::InputGrammar::Syntax::kLark, .definition = kNested};
    const OutputConstraint constraint = calling(format, {patch});
    const GrammarPtr grammar = grammar_of(constraint);
    for (int i = 0; i < 20; ++i) {
      const RandomText written = random_text(grammar, random, 2000);
      if (!written.is_whole) continue;
      INFO(written.text);
      for (const text::ToolCallPart& call : parse(constraint, written.text).calls) {
        openai::CustomInput input;
        std::string text = input.push(call.arguments);
        text += input.finish();
        CHECK(matches(language, text));
      }
    }
    if (syntax.notation != text::ArgumentNotation::kParameters) continue;
    const std::string end(syntax.tags->value_end);
    const auto call = [&](std::string_view text) {
      return fmt::format("{}{}{}{}{}{}input{}{}{}{}{}{}{}{}", syntax.section_open, syntax.list_open, syntax.call_open,
                         syntax.before_name, "patch",
                         std::string(syntax.before_arguments) + std::string(syntax.tags->open), syntax.tags->key_end,
                         syntax.tags->value_open, text, end, syntax.after_arguments, syntax.call_close,
                         syntax.list_close, syntax.section_close);
    };
    CHECK(matches(grammar, call("(</param>)")));
    CHECK_FALSE((matches(grammar, call("(\n</parameter>\n)")) && end == "\n</parameter>\n"));
    CHECK_FALSE((matches(grammar, call("(</parameter>\n)")) && end == "</parameter>\n"));
  }
}
