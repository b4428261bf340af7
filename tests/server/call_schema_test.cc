#include <fmt/format.h>
#include <fmt/ranges.h>

#include <catch2/catch.hpp>

#include "base/json.h"
#include "base/json_value.h"
#include "server/call_fixtures.h"

using namespace millrace;
using namespace millrace::server;
using namespace millrace::test;
using text::ToolFormat;

/// A schema of arguments holds in every format of calls. Each writes the same arguments in its own way.
namespace {

std::string literal_of(const text::LiteralDialect& dialect, JsonValue value) {
  const bool is_python = dialect.quote.empty();
  std::string_view text;
  JsonArray array;
  JsonObject object;
  std::vector<std::string> parts;
  if (value.get(text)) return is_python ? to_json(value) : fmt::format("{}{}{}", dialect.quote, text, dialect.quote);
  if (value.is_true()) return std::string(dialect.true_word);
  if (value.is_false()) return std::string(dialect.false_word);
  if (value.is_null()) return std::string(dialect.null_word);
  if (value.get(array)) {
    for (const JsonValue item : array) parts.push_back(literal_of(dialect, item));
    return fmt::format("[{}]", fmt::join(parts, dialect.separator));
  }
  if (!value.get(object)) return to_json(value);
  for (const JsonMember& member : object) {
    parts.push_back(
        fmt::format(fmt::runtime(is_python ? "\"{}\": {}" : "{}:{}"), member.key, literal_of(dialect, member.value)));
  }
  return fmt::format("{{{}}}", fmt::join(parts, dialect.separator));
}

std::string parameter_of(const text::ParameterTags& tags, const JsonMember& member) {
  std::string_view text;
  const bool is_text = member.value.get(text);
  const bool says_so = tags.has_string_attribute && !is_text;
  return fmt::format("{}{}{}{}{}{}", tags.open, member.key, tags.key_end,
                     says_so ? " string=\"false\">" : tags.value_open,
                     is_text ? std::string(text) : to_json(member.value), tags.value_end);
}

/// Returns the arguments as a syntax writes them.
std::string arguments_in(const text::ToolCallSyntax& syntax, JsonValue value) {
  JsonObject object;
  REQUIRE(value.get(object));
  std::vector<std::string> parts;
  if (syntax.notation == text::ArgumentNotation::kParameters) {
    for (const JsonMember& member : object) parts.push_back(parameter_of(*syntax.tags, member));
    return fmt::format("{}", fmt::join(parts, ""));
  }
  if (syntax.notation != text::ArgumentNotation::kLiterals) return to_json(value);
  const text::LiteralDialect& dialect = *syntax.dialect;
  for (const JsonMember& member : object) {
    parts.push_back(fmt::format("{}{}{}", member.key, dialect.key_end, literal_of(dialect, member.value)));
  }
  return fmt::format("{}{}{}", dialect.open, fmt::join(parts, dialect.separator), dialect.close);
}

struct Case {
  const char* schema;
  std::vector<std::string> valid;
  std::vector<std::string> invalid;
};

void check(const Case& each, bool is_strict = true) {
  for (const ToolFormat format : all_formats()) {
    const text::ToolCallSyntax& syntax = text::row_of(format).written.front();
    const OutputConstraint constraint = calling(format, {tool("f", each.schema, is_strict)});
    INFO(text::to_string(format) << " " << each.schema);
    const GrammarPtr grammar = grammar_of(constraint);
    for (const bool is_valid : {true, false}) {
      for (const std::string& instance : is_valid ? each.valid : each.invalid) {
        const JsonDocument document = JsonDocument::parse(instance).value();
        const std::string output = output_of(syntax, call_of(syntax, "f", arguments_in(syntax, document.root())));
        INFO(output);
        CHECK(matches(grammar, output) == is_valid);
        if (!is_valid) continue;
        const text::OutputPart read = parse(constraint, output);
        REQUIRE(read.calls.size() == 1);
        const auto arguments = JsonDocument::parse(std::string_view(read.calls[0].arguments));
        REQUIRE(arguments.has_value());
        CHECK(to_json(arguments->root()) == to_json(document.root()));
      }
    }
  }
}

}  // namespace

TEST_CASE("an unsupported condition loosens its own value alone") {
  check({R"({"type":"object","properties":{"a":{"type":"string","pattern":"(?<=x)y"},"l":{"type":"array",)"
         R"("items":{"type":"string"},"uniqueItems":true},"n":{"type":"integer"}},"required":["a","n"],)"
         R"("additionalProperties":false})",
         {R"({"a":"q","l":["s","s"],"n":1})"},
         {R"({"a":"q"})", R"({"a":"q","n":"x"})", R"({"a":"q","n":1,"z":2})", R"({"a":"q","l":"s","n":1})"}},
        false);
}

TEST_CASE("combined schemas of arguments hold in every format") {
  // Two ways of one tool, each with a member of its own (codebase-memory-mcp#1524).
  check({R"({"type":"object","properties":{"p":{"type":"string"},"a":{"type":"integer"},"b":{"type":"integer"}},)"
         R"("required":["p"],"anyOf":[{"required":["a"]},{"required":["b"]}],"additionalProperties":false})",
         {R"({"p":"x","a":1})", R"({"b":1,"p":"x"})", R"({"a":1,"p":"x","b":2})"},
         {R"({"p":"x"})", R"({"a":1})", R"({"p":"x","a":"1.5"})", R"({"p":"x","a":1,"c":2})"}});
  check({R"({"type":"object","oneOf":[{"properties":{"kind":{"const":"n"},"v":{"type":"integer"}},)"
         R"("required":["kind","v"]},{"properties":{"kind":{"const":"b"},"v":{"type":"boolean"}},)"
         R"("required":["kind","v"]}]})",
         {R"({"kind":"n","v":7})", R"({"v":true,"kind":"b"})"},
         {R"({"kind":"n","v":true})", R"({"kind":"b","v":7})", R"({"kind":"n"})", R"({"kind":"c","v":7})"}});
  check({R"({"$ref":"#/$defs/node","$defs":{"node":{"type":"object","properties":{"n":{"type":"integer"},)"
         R"("next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},"required":["n"]}}})",
         {R"({"n":1})", R"({"n":1,"next":null})", R"({"n":1,"next":{"n":2,"next":{"n":3}}})"},
         {R"({"next":null})", R"({"n":1,"next":{}})", R"({"n":1,"next":{"n":2,"next":{"n":null}}})"}});
  check({R"({"allOf":[{"type":"object","properties":{"a":{"type":"integer","minimum":3}}},)"
         R"({"properties":{"a":{"maximum":9}},"required":["a"]}]})",
         {R"({"a":3})", R"({"a":9})"},
         {R"({"a":2})", R"({"a":10})", "{}"}});
  check({R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"minProperties":1,)"
         R"("maxProperties":1})",
         {R"({"a":3})", R"({"b":3})"},
         {"{}", R"({"a":3,"b":4})"}});
  check({R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},)"
         R"("dependentRequired":{"a":["b"]}})",
         {"{}", R"({"b":3})", R"({"a":3,"b":4})"},
         {R"({"a":3})"}});
  check({R"({"type":"object","properties":{"a":{"type":"boolean"},"b":{"type":"integer"}},"required":["a"],)"
         R"("if":{"properties":{"a":{"const":true}}},"then":{"required":["b"]}})",
         {R"({"a":false})", R"({"a":true,"b":4})"},
         {R"({"a":true})"}});
  check({R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"not":{"required":["b"]},)"
         R"("additionalProperties":true})",
         {R"({"a":1})", R"({"a":1,"c":"x"})"},
         {R"({"a":1,"b":2})"}});
}

TEST_CASE("undeclared arguments hold their schema in every format") {
  // A declared member is none of the others (xgrammar#208).
  check({R"({"type":"object","properties":{"a":{"type":"boolean"}},"additionalProperties":{"type":"integer"}})",
         {R"({"a":true})", R"({"b":1,"a":true})", R"({"b":1,"c":2})"},
         {R"({"a":1})", R"({"b":true})"}});
  check({R"({"type":"object","patternProperties":{"^(yes|no)$":{"type":"integer"}},"additionalProperties":false})",
         {R"({"yes":1})", R"({"no":1,"yes":2})", "{}"},
         {R"({"maybe":1})", R"({"yes":true})"}});
  check({R"({"type":"object","additionalProperties":{"type":"integer"},"propertyNames":{"maxLength":2}})",
         {R"({"ab":1})"},
         {R"({"abc":1})"}});
  check({R"({"type":"object","patternProperties":{"^s_":{"type":"string"},"^t_":{"type":"string","maxLength":1}}})",
         {R"({"s_a":"12","t_a":"1"})"},
         {R"({"s_a":"12","t_a":"12"})"}});
}

TEST_CASE("conditions on values hold in every format") {
  const auto of = [](const std::string& value) {
    return fmt::format(R"({{"type":"object","properties":{{"v":{}}},"required":["v"]}})", value);
  };
  const auto values = [](const std::vector<std::string>& all) {
    std::vector<std::string> objects;
    for (const std::string& value : all) objects.push_back(fmt::format("{{\"v\":{}}}", value));
    return objects;
  };
  const std::vector<std::tuple<std::string, std::vector<std::string>, std::vector<std::string>>> cases = {
      // Bounds that other converters have got wrong (xgrammar#661, sglang#34778).
      {R"({"type":"number","exclusiveMinimum":0})", {"0.1", "1", "1000"}, {"0", "-1"}},
      {R"({"type":"number","minimum":1,"maximum":5})", {"1", "5", "4.75"}, {"5.7", "0.9"}},
      {R"({"type":"integer","minimum":-5})", {"-5", "0", "70"}, {"-6", "-70"}},
      {R"({"type":"integer","minimum":2})", {"2", "10"}, {"1"}},
      {R"({"type":"integer","multipleOf":7})", {"0", "-14", "21"}, {"20"}},
      {R"({"type":"string","minLength":2,"maxLength":3})", {R"("ab")", R"("a\"é")"}, {R"("a")", R"("abcd")"}},
      {R"({"type":"string","pattern":"^[a-z]+$"})", {R"("abc")"}, {R"("aB")", R"("")"}},
      {R"({"type":"string","format":"date"})", {R"("2026-02-28")"}, {R"("2026-02-30")"}},
      {R"({"type":"array","items":{"type":"string","pattern":"^x"},"minItems":1,"maxItems":2})",
       {R"(["x"])", R"(["xy","x<y"])"},
       {"[]", R"(["y"])", R"(["x","x","x"])"}},
      {R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"boolean"}],"items":false})",
       {"[1]", "[1,true]"},
       {"[true]", "[1,true,1]"}},
      {R"({"type":"array","items":{"enum":["a","b"]},"uniqueItems":true})", {R"(["a","b"])", "[]"}, {R"(["a","a"])"}},
      {R"({"type":"array","contains":{"const":7}})", {"[7]", "[1,7]"}, {"[1]", "[]"}},
      {R"({"enum":[{"k":[1,"x"]},["a",null],true]})",
       {R"({"k":[1,"x"]})", R"(["a",null])", "true"},
       {R"({"k":[1]})", "false", R"(["a"])"}},
      {R"({"type":"object","properties":{"s":{"type":"string","minLength":1},"n":{"type":"integer"}},)"
       R"("required":["s"],"oneOf":[{"required":["n"]},{"required":["b"]}],"additionalProperties":{"type":"boolean"}})",
       {R"({"s":"x","n":1})", R"({"b":true,"s":"x"})"},
       {R"({"s":"x"})", R"({"s":"","n":1})", R"({"s":"x","n":1,"b":true})"}},
      {R"({"allOf":[{"type":["object","null"]},{"properties":{"a":{"const":1}},"required":["a"]}]})",
       {R"({"a":1})", "null"},
       {"{}", R"({"a":2})"}},
  };
  for (const auto& [schema, valid, invalid] : cases) {
    const std::string whole = of(schema);
    check({whole.c_str(), values(valid), values(invalid)});
  }
}

TEST_CASE("arguments are an object whatever the schema says") {
  for (const char* schema : {"{}", R"({"description":"x"})", R"({"type":["object","string"]})"}) {
    check({schema, {R"({"a":"x"})", "{}"}, {}});
    for (const ToolFormat format : all_formats()) {
      const text::ToolCallSyntax& syntax = text::row_of(format).written.front();
      const GrammarPtr grammar = grammar_of(calling(format, {tool("f", schema)}));
      for (const char* other : {"5", "null", "\"x\"", "[1]"}) {
        CHECK_FALSE(matches(grammar, output_of(syntax, call_of(syntax, "f", other))));
      }
    }
  }
}

TEST_CASE("listed texts in JSON may hold what ends a value") {
  const char* schema =
      R"({"type":"object","properties":{"at":{"type":"array","items":{"enum":["</parameter>","b"]}}}})";
  const OutputConstraint constraint = calling(ToolFormat::kQwen3Coder, {tool("f", schema)});
  const text::ToolCallSyntax& syntax = text::row_of(ToolFormat::kQwen3Coder).written.front();
  const auto output = [&](std::string_view at) {
    return output_of(syntax, call_of(syntax, "f", written_arguments(syntax, at, "")));
  };
  const std::string escaped = output(R"(["\u003c/parameter>","b"])");
  REQUIRE(matches(grammar_of(constraint), escaped));
  CHECK_FALSE(matches(grammar_of(constraint), output(R"(["</parameter>"])")));
  CHECK(parse(constraint, escaped).calls.at(0).arguments == R"({"at": ["</parameter>","b"]})");
}

// Other servers refuse such lists of tools (llama.cpp#26596), or take a thousand times as long for a mask
// (xgrammar#852).
TEST_CASE("many tools with long bounds fit in every format") {
  const char* schema = R"({"type":"object","properties":{"s":{"type":"string","minLength":1,"maxLength":65536},)"
                       R"("l":{"type":"array","items":{"type":"string","maxLength":65536}}},"required":["s"]})";
  for (const ToolFormat format : all_formats()) {
    INFO(text::to_string(format));
    std::vector<openai::Tool> tools;
    for (int i = 0; i < 34; ++i) tools.push_back(tool(fmt::format("f{}", i), schema));
    const OutputConstraint constraint = calling(format, tools);
    const GrammarPtr grammar = grammar_of(constraint);
    const text::ToolCallSyntax& syntax = text::row_of(format).written.front();
    const JsonDocument document = JsonDocument::parse(R"({"s":"x y","l":["a","b"]})").value();
    const std::string arguments = arguments_in(syntax, document.root());
    grammar::Matcher matcher(grammar, true);
    uint64_t most = 0;
    for (const char c : output_of(syntax, call_of(syntax, "f33", arguments))) {
      grammar::WorkBudget budget(UINT64_MAX);
      REQUIRE(matcher.settle(budget));
      most = std::max(most, budget.used());
      REQUIRE(matcher.advance(static_cast<uint8_t>(c)));
    }
    CHECK(matcher.may_end());
    CHECK(most < 20'000);
  }
}
