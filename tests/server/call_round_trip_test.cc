#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "base/json.h"
#include "base/json_value.h"
#include "server/call_fixtures.h"
#include "server/schema_check.h"
#include "support/effort.h"

using namespace millrace;
using namespace millrace::server;
using namespace millrace::test;

namespace {

constexpr const char* kDefinitions =
    R"("$defs":{"color":{"enum":["red","a<b","two\nlines"]},"node":{"type":"object","properties":)"
    R"({"name":{"type":"string"},"next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},"required":["name"]}})";

/// Schemas of values, among them those that text without quotes could be mistaken for.
const std::vector<std::string> kValues = {
    R"({"type":"string"})",
    R"({"type":"string","minLength":1,"maxLength":12})",
    R"({"type":["string","null"]})",
    R"({"type":"integer","minimum":-5,"maximum":70})",
    R"({"type":"number"})",
    R"({"type":"boolean"})",
    R"({"type":"null"})",
    R"({"enum":["a","a b","x<y","\"q\"","2",2,true,null]})",
    R"({"enum":["null","None","True","7"],"type":"string"})",
    R"({"enum":["1","2"],"type":["string","integer"]})",
    R"({"const":"k"})",
    R"({"const":7})",
    R"({"type":"array","items":{"type":"string"},"maxItems":3})",
    R"({"type":"array","items":{"type":"string","maxLength":3000},"maxItems":2})",
    R"({"type":"object","properties":{"s":{"type":"string"},"n":{"type":"integer"}},"required":["s"]})",
    R"({"$ref":"#/$defs/color"})",
    R"({"anyOf":[{"$ref":"#/$defs/color"},{"type":"null"}]})",
    R"({"anyOf":[{"type":"integer"},{"type":"string"}]})",
    R"({"anyOf":[{"type":"array","items":{"type":"string"}},{"type":"string"}]})",
    R"({"$ref":"#/$defs/node"})",
    R"({"allOf":[{"$ref":"#/$defs/color"}],"description":"one"})",
    R"({})"};

/// Schemas of arguments that are more than a list of properties.
const std::vector<std::string> kWholes = {
    R"({{"$ref":"#/$defs/node",{}}})",
    R"({{"type":"object","additionalProperties":{{"type":"integer"}},{}}})",
    R"({{"type":"object","properties":{{"a":{{"type":"boolean"}}}},"additionalProperties":{{"type":"string"}},{}}})",
    R"({{"allOf":[{{"$ref":"#/$defs/node"}},{{"properties":{{"k":{{"type":"integer"}}}},"required":["k"]}}],{}}})",
    R"({{"anyOf":[{{"$ref":"#/$defs/node"}},{{"type":"object","properties":{{"k":{{"type":"integer"}}}},)"
    R"("required":["k"]}}],{}}})",
    R"({{"type":"object","properties":{{"a":{{"type":"integer"}},"b":{{"type":"null"}}}},"maxProperties":1,{}}})"};

/// Returns the schema of a tool with some properties, of which some are required.
std::string random_schema(std::mt19937_64& random) {
  std::vector<std::string> names = {"a", "file_path", "max-n", "$top", "Ω", "x.y", "@type", "null", "a b", "u:v"};
  std::ranges::shuffle(names, random);
  names.resize(1 + random() % 4);
  std::string properties;
  std::string required;
  for (const std::string& name : names) {
    properties += fmt::format("{}\"{}\":{}", properties.empty() ? "" : ",", name, kValues[random() % kValues.size()]);
    if (random() % 2 == 0) required += fmt::format("{}\"{}\"", required.empty() ? "" : ",", name);
  }
  return fmt::format(R"({{"type":"object","properties":{{{}}},"required":[{}],"additionalProperties":false,{}}})",
                     properties, required, kDefinitions);
}

/// What a model may write in a call: the marks of the syntax whole and in parts, and what strings may hold.
struct Words {
  std::vector<std::string> any;
  std::vector<std::string> ends;  ///< those that lead to the end, the most certain first
};

Words words_of(const text::ToolCallSyntax& syntax) {
  Words words;
  const auto add = [&](std::string_view mark) {
    if (mark.empty()) return;
    words.any.emplace_back(mark);
    words.any.emplace_back(mark.substr(0, mark.size() - 1));
    words.any.emplace_back(mark.substr(0, mark.size() / 2));
  };
  for (const std::string_view mark :
       {syntax.section_open, syntax.call_open, syntax.before_name, syntax.before_arguments, syntax.after_arguments,
        syntax.call_close, syntax.separator, syntax.list_close, syntax.section_close}) {
    add(mark);
  }
  if (syntax.tags != nullptr) {
    for (const std::string_view mark :
         {syntax.tags->open, syntax.tags->key_end, syntax.tags->value_open, syntax.tags->value_end}) {
      add(mark);
    }
    words.ends.emplace_back(syntax.tags->value_end);
  }
  if (syntax.dialect != nullptr && !syntax.dialect->quote.empty()) {
    add(syntax.dialect->quote);
    words.ends.emplace_back(syntax.dialect->quote);
  }
  for (const char* word :
       {"\n", "\n\n", "\"", "\\n", "\\\"", "\\u003c", "'",    "{",        "}",       "[",
        "]",  ",",    ", ", ": ",  " ",    "null",    "None", "true",     "7",       "-1.5",
        "é",  "日",   "😀", "<",   "</",   "x",       "a<b",  "</think>", "<think>", "\\ud83d\\ude00"}) {
    words.any.emplace_back(word);
  }
  words.ends.emplace_back("\"");
  for (const std::string_view end :
       {syntax.after_arguments, syntax.call_close, syntax.list_close, syntax.section_close}) {
    if (!end.empty()) words.ends.emplace_back(end);
  }
  words.ends.insert(words.ends.end(), {"]", "}", ")"});
  return words;
}

bool advance_by(grammar::Matcher& matcher, std::string_view word) {
  for (const char c : word) {
    if (!matcher.advance(static_cast<uint8_t>(c))) return false;
  }
  return true;
}

/// Returns a text that the grammar allows, made of words after a beginning, or nothing if it comes to no end.
std::optional<std::string> text_of_words(const GrammarPtr& grammar, std::string text, const Words& words,
                                         std::mt19937_64& random) {
  grammar::Matcher matcher(grammar, true);
  REQUIRE(advance_by(matcher, text));
  size_t count = random() % 60;
  for (int step = 0; step < 3000 && !matcher.must_end(); ++step) {
    if (matcher.may_end() && (count == 0 || random() % 3 == 0)) break;
    if (count == 0) {
      const auto fits = [&](const std::string& word) {
        grammar::Matcher copy = matcher;
        return advance_by(copy, word);
      };
      const auto end = std::ranges::find_if(words.ends, fits);
      if (end != words.ends.end()) {
        REQUIRE(advance_by(matcher, *end));
        text += *end;
        continue;
      }
    } else if (random() % 4 != 0) {
      --count;
      const std::string& word = words.any[random() % words.any.size()];
      for (const char c : word) {
        if (!matcher.advance(static_cast<uint8_t>(c))) break;
        text += c;
      }
      continue;
    }
    const auto allowed = matcher.allowed();
    REQUIRE(allowed != nullptr);
    std::vector<TokenId> bytes;
    for (TokenId byte = 0; byte < kEnd; ++byte) {
      if (allowed->contains(byte)) bytes.push_back(byte);
    }
    if (bytes.empty()) break;
    const TokenId byte = bytes[random() % bytes.size()];
    REQUIRE(matcher.advance(byte));
    text += static_cast<char>(byte);
  }
  if (!matcher.may_end()) return std::nullopt;
  return text;
}

std::string summary(const text::OutputPart& part) {
  std::string all = fmt::format("{}|{}", part.reasoning, part.content);
  for (const text::ToolCallPart& call : part.calls) all += fmt::format("|{} {} {}", call.name, call.id, call.arguments);
  return all;
}

/// Writes outputs that the constraint allows, and checks that their calls satisfy the schema of the tool.
size_t check_outputs(const OutputConstraint& constraint, const std::string& schema, int count, std::mt19937_64& random,
                     const std::string& begin = {}) {
  const auto built = build_grammar(constraint, SchemaEnforcement::kAll);
  const text::ToolFormat format = constraint.calls->format;
  const auto& written = text::row_of(format).written;
  if (built.has_error()) {
    // Keywords of Python are names.
    CHECK_THAT(built.error().message, Catch::Contains("cannot have a parameter") && !Catch::Contains("'a'"));
    CHECK(written.front().dialect != nullptr);
    return static_cast<size_t>(count);
  }
  const GrammarPtr grammar = grammar::Grammar::compile(built.value(), byte_vocabulary(), {kEnd}).value();
  simdjson::dom::parser schemas;
  const simdjson::dom::element root = schemas.parse(schema);
  size_t whole = 0;
  for (int i = 0; i < count; ++i) {
    const auto text = text_of_words(grammar, begin, words_of(written[random() % written.size()]), random);
    if (!text) continue;
    ++whole;
    INFO(*text);
    const text::OutputPart read = parse(constraint, *text);
    CHECK(summary(parse(constraint, *text, 1)) == summary(read));
    CHECK(summary(parse(constraint, *text, 1 + random() % 20)) == summary(read));
    CHECK(read.content.empty());
    CHECK_FALSE(read.calls.empty());
    for (const text::ToolCallPart& call : read.calls) {
      INFO(call.arguments);
      simdjson::dom::parser parser;
      simdjson::dom::element arguments;
      const bool is_json = parser.parse(call.arguments).get(arguments) == simdjson::SUCCESS;
      CHECK(is_json);
      if (is_json) CHECK(matches(arguments, root, root));
    }
  }
  return whole;
}

}  // namespace

TEST_CASE("what a grammar of calls allows is read as its schema says") {
  const uint64_t seed = test_seed();
  std::mt19937_64 random(seed);
  for (const text::ToolFormat format : all_formats()) {
    size_t whole = 0;
    for (uint64_t i = 0; i < repetitions(10); ++i) {
      const std::string schema = random_schema(random);
      INFO(text::to_string(format) << " seed " << seed << " " << schema);
      whole += check_outputs(calling(format, {tool("f", schema)}), schema, 8, random);
    }
    INFO(text::to_string(format) << ": " << whole);
    CHECK(whole > repetitions(10) * 2);
  }
}

TEST_CASE("schemas of arguments may combine others") {
  const uint64_t seed = test_seed();
  std::mt19937_64 random(seed);
  for (const text::ToolFormat format : all_formats()) {
    for (const std::string& whole : kWholes) {
      const std::string schema = fmt::format(fmt::runtime(whole), kDefinitions);
      INFO(text::to_string(format) << " seed " << seed << " " << schema);
      CHECK(check_outputs(calling(format, {tool("f", schema)}), schema, 6, random) > 0);
    }
  }
}

TEST_CASE("calls and JSON after reasoning are read as they are written") {
  const uint64_t seed = test_seed();
  std::mt19937_64 random(seed);
  const std::string schema = R"({"type":"object","properties":{"a":{"type":"string"}},"required":["a"]})";
  for (const text::ToolFormat format : all_formats()) {
    if (format == text::ToolFormat::kHarmony) continue;
    const std::string thought = "Hm. " + std::string(text::tool_call_start_tag(format));
    const bool may_call = text::row_of(format).ends_reasoning;
    const std::string end = may_call ? "" : "</think>\n";
    OutputConstraint constraint = calling(format, {tool("f", schema)});
    INFO(text::to_string(format) << " seed " << seed);
    constraint.reasoning = ReasoningMode::kOpened;
    CHECK(check_outputs(constraint, schema, 4, random, thought + end) > 0);
    CHECK(check_outputs(constraint, schema, 4, random, "Hm.</think>") > 0);
    constraint.reasoning = ReasoningMode::kOptional;
    CHECK(check_outputs(constraint, schema, 4, random, "<think>" + thought + end) > 0);
    CHECK(check_outputs(constraint, schema, 4, random, text::tool_call_prefix(format, "f")) > 0);
  }
  OutputConstraint json;
  json.reasoning = ReasoningMode::kOptional;
  json.response_format =
      openai::ResponseFormat{openai::ResponseFormat::Kind::kJsonSchema, {schema}, "response_format", "json_schema"};
  const std::string content = R"({"a":"<think>x</think>"})";
  REQUIRE(matches(grammar_of(json), content));
  CHECK(parse(json, content).content == content);
  CHECK(parse(json, content, 1).content == content);
  CHECK(parse(json, "<think>y</think>" + content, 1).content == content);
}
