#include "server/grammar_cache.h"

#include <catch2/catch.hpp>

#include "grammar/matcher.h"
#include "server/test_server.h"

using namespace millrace;
using namespace millrace::server;
using openai::ResponseFormat;

namespace {

constexpr uint32_t kVocab = 258;
constexpr TokenId kEos = 257;

ResponseFormat form_of(ResponseFormat::Kind kind, std::string text) {
  return {kind, {std::move(text)}, "field", "field.place"};
}
OutputConstraint constrained_to(ResponseFormat form, ReasoningMode start = ReasoningMode::kNone) {
  return {.reasoning = start, .response_format = std::move(form)};
}

bool matches(const openai::ApiResult<std::shared_ptr<const grammar::Grammar>>& grammar, std::string_view text) {
  grammar::Matcher matcher(grammar.value(), true);
  for (const char c : text) {
    if (!matcher.advance(static_cast<uint8_t>(c))) return false;
  }
  return matcher.may_end();
}

}  // namespace

TEST_CASE("every notation becomes a grammar") {
  GrammarCache grammars(test::byte_tokenizer(), kVocab, {kEos});
  using Kind = ResponseFormat::Kind;
  const auto of = [&](Kind kind, std::string text) {
    return grammars.get_or_compile(constrained_to(form_of(kind, std::move(text))));
  };
  CHECK(matches(of(Kind::kRegex, "a+"), "aa"));
  CHECK(matches(of(Kind::kGrammar, "root ::= \"a\" b\nb ::= \"b\""), "ab"));
  CHECK(matches(of(Kind::kJsonSchema, "{\"type\":\"integer\"}"), "12"));
  CHECK(matches(of(Kind::kJsonObject, ""), "{\"a\":[1,{}]}"));
  const auto choice =
      grammars.get_or_compile(constrained_to({Kind::kChoice, {"red", "red wine", "blue"}, "field", "field"}));
  CHECK(matches(choice, "red"));
  CHECK(matches(choice, "red wine"));
  CHECK(!matches(choice, "red "));
  const auto refused = of(Kind::kRegex, "(").error();
  CHECK(refused.param == "field");
  CHECK(refused.message == "field.place: wanted ')' (at byte 1)");
}

TEST_CASE("equal constraints share a grammar and others do not") {
  GrammarCache grammars(test::byte_tokenizer(), kVocab, {kEos});
  using Kind = ResponseFormat::Kind;
  const ResponseFormat form = form_of(Kind::kRegex, "ab");
  const auto first = grammars.get_or_compile(constrained_to(form)).value();
  CHECK(grammars.get_or_compile(constrained_to(form)).value() == first);
  CHECK(grammars.get_or_compile(constrained_to(form, ReasoningMode::kOptional)).value() != first);
  CHECK(grammars.get_or_compile(constrained_to(form_of(Kind::kRegex, "abc"))).value() != first);
  const auto two = grammars.get_or_compile(constrained_to({Kind::kChoice, {"a", "b"}, "f", "f"})).value();
  CHECK(grammars.get_or_compile(constrained_to({Kind::kChoice, {"ab"}, "f", "f"})).value() != two);
  for (int i = 0; i < 40; ++i) {
    REQUIRE(grammars.get_or_compile(constrained_to(form_of(Kind::kRegex, std::to_string(i)))).has_value());
  }
  CHECK(grammars.get_or_compile(constrained_to(form)).value() != first);  // forgotten, and compiled again
}

TEST_CASE("reasoning precedes the form which applies from its end on") {
  GrammarCache grammars(test::byte_tokenizer(), kVocab, {kEos});
  const ResponseFormat form = form_of(ResponseFormat::Kind::kRegex, "[0-9]+");
  const auto begun = grammars.get_or_compile(constrained_to(form, ReasoningMode::kOpened));
  CHECK(matches(begun, "Hm, <</thi </think </thin</think>\n\n42"));
  CHECK(matches(begun, "</think>42"));
  CHECK(!matches(begun, "42"));
  CHECK(!matches(begun, "a</think>b"));
  CHECK(!matches(begun, "a</think>1</think>2"));
  const auto possible = grammars.get_or_compile(constrained_to(form, ReasoningMode::kOptional));
  CHECK(matches(possible, "42"));
  CHECK(matches(possible, "<think>one\ntwo</think>\n\n42"));
  CHECK(!matches(possible, "<thin>42"));
  CHECK(!matches(possible, "x42"));
}

TEST_CASE("special tokens add no text and the end is a token") {
  GrammarCache grammars(test::byte_tokenizer(), kVocab, {kEos});
  const auto grammar = grammars.get_or_compile(constrained_to(form_of(ResponseFormat::Kind::kRegex, "[^x]+"))).value();
  grammar::Matcher matcher(grammar, true);
  CHECK(!matcher.allowed()->contains(256));
  CHECK(!matcher.allowed()->contains(kEos));
  REQUIRE(matcher.advance('<'));
  CHECK(!matcher.allowed()->contains(256));
  CHECK(matcher.allowed()->contains(kEos));
  CHECK(!matcher.allowed()->contains('x'));
}

TEST_CASE("what is too large is told of tools and a form together") {
  GrammarCache grammars(test::byte_tokenizer(), kVocab, {kEos});
  OutputConstraint constraint = constrained_to(form_of(ResponseFormat::Kind::kRegex, "a"));
  std::string large = R"({"type":"object","properties":{"a":{"enum":[)";
  for (const char letter : {'x', 'y', 'z'}) large += '"' + std::string(90'000, letter) + "\",";
  large += R"(1]}}})";
  constraint.calls = ToolCallConstraint{.tools = {{.name = "f", .parameters = large, .is_strict = true}}};
  const auto refused = grammars.get_or_compile(constraint).error();
  CHECK(refused.param == "tools");
  CHECK_THAT(refused.message, Catch::StartsWith("tools and field.place: it takes more than"));
  constraint.calls->tools[0].is_strict = false;
  CHECK(matches(grammars.get_or_compile(constraint), "a"));
}

TEST_CASE("a special token may spell a tool call tag in calls only") {
  constexpr TokenId kTag = 258;
  GrammarCache grammars(test::byte_tokenizer("[TOOL_CALLS]"), kVocab + 1, {kEos});
  const auto form = grammars.get_or_compile(constrained_to(form_of(ResponseFormat::Kind::kRegex, ".*"))).value();
  CHECK(!grammar::Matcher(form, true).allowed()->contains(kTag));
  OutputConstraint constraint;
  constraint.calls =
      ToolCallConstraint{.format = text::ToolFormat::kMistral, .tools = {{.name = "f"}}, .must_call = true};
  const auto calls = grammars.get_or_compile(constraint).value();
  CHECK(matches(grammars.get_or_compile(constraint), "[TOOL_CALLS]f[ARGS]{}"));
  grammar::Matcher matcher(calls, true);
  CHECK(matcher.allowed()->contains(kTag));
  CHECK(matcher.allowed()->contains('['));
  REQUIRE(matcher.advance(kTag));
  CHECK(!matcher.allowed()->contains(kTag));
  for (const char c : std::string_view("f[ARGS]{}")) REQUIRE(matcher.advance(static_cast<uint8_t>(c)));
  CHECK(matcher.may_end());
  CHECK(matcher.allowed()->contains(kTag));  // another call
}
