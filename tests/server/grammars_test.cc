#include "server/grammars.h"

#include <catch2/catch.hpp>

#include "server/test_server.h"

using namespace millrace;
using namespace millrace::server;
using openai::AnswerForm;

namespace {

constexpr uint32_t kVocab = 258;
constexpr TokenId kEos = 257;

AnswerForm form_of(AnswerForm::Notation notation, std::string text) {
  return {notation, {std::move(text)}, "field", "field.place"};
}
HeldAnswer held_to(AnswerForm form, AnswerStart start = AnswerStart::kPlain) {
  return {.start = start, .form = std::move(form)};
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
  Grammars grammars(test::byte_tokenizer(), kVocab, {kEos});
  using Notation = AnswerForm::Notation;
  const auto of = [&](Notation notation, std::string text) {
    return grammars.grammar_of(held_to(form_of(notation, std::move(text))));
  };
  CHECK(matches(of(Notation::kRegex, "a+"), "aa"));
  CHECK(matches(of(Notation::kGrammar, "root ::= \"a\" b\nb ::= \"b\""), "ab"));
  CHECK(matches(of(Notation::kJsonSchema, "{\"type\":\"integer\"}"), "12"));
  CHECK(matches(of(Notation::kJsonObject, ""), "{\"a\":[1,{}]}"));
  const auto choice = grammars.grammar_of(held_to({Notation::kChoice, {"red", "red wine", "blue"}, "field", "field"}));
  CHECK(matches(choice, "red"));
  CHECK(matches(choice, "red wine"));
  CHECK(!matches(choice, "red "));
  const auto refused = of(Notation::kRegex, "(").error();
  CHECK(refused.param == "field");
  CHECK(refused.message == "field.place: wanted ')' (at byte 1)");
}

TEST_CASE("equal forms share a grammar, and others do not") {
  Grammars grammars(test::byte_tokenizer(), kVocab, {kEos});
  using Notation = AnswerForm::Notation;
  const AnswerForm form = form_of(Notation::kRegex, "ab");
  const auto first = grammars.grammar_of(held_to(form)).value();
  CHECK(grammars.grammar_of(held_to(form)).value() == first);
  CHECK(grammars.grammar_of(held_to(form, AnswerStart::kMayReason)).value() != first);
  CHECK(grammars.grammar_of(held_to(form_of(Notation::kRegex, "abc"))).value() != first);
  const auto two = grammars.grammar_of(held_to({Notation::kChoice, {"a", "b"}, "f", "f"})).value();
  CHECK(grammars.grammar_of(held_to({Notation::kChoice, {"ab"}, "f", "f"})).value() != two);
  for (int i = 0; i < 40; ++i) {
    REQUIRE(grammars.grammar_of(held_to(form_of(Notation::kRegex, std::to_string(i)))).has_value());
  }
  CHECK(grammars.grammar_of(held_to(form)).value() != first);  // forgotten, and made anew
}

TEST_CASE("reasoning goes before the form, which holds from its end on") {
  Grammars grammars(test::byte_tokenizer(), kVocab, {kEos});
  const AnswerForm form = form_of(AnswerForm::Notation::kRegex, "[0-9]+");
  const auto begun = grammars.grammar_of(held_to(form, AnswerStart::kBegunReasoning));
  CHECK(matches(begun, "Hm, <</thi </think </thin</think>\n\n42"));
  CHECK(matches(begun, "</think>42"));
  CHECK(!matches(begun, "42"));
  CHECK(!matches(begun, "a</think>b"));
  CHECK(!matches(begun, "a</think>1</think>2"));
  const auto possible = grammars.grammar_of(held_to(form, AnswerStart::kMayReason));
  CHECK(matches(possible, "42"));
  CHECK(matches(possible, "<think>one\ntwo</think>\n\n42"));
  CHECK(!matches(possible, "<thin>42"));
  CHECK(!matches(possible, "x42"));
}

TEST_CASE("special tokens spell nothing, and the answer's end is its own token") {
  Grammars grammars(test::byte_tokenizer(), kVocab, {kEos});
  const auto grammar = grammars.grammar_of(held_to(form_of(AnswerForm::Notation::kRegex, "[^x]+"))).value();
  grammar::Matcher matcher(grammar, true);
  CHECK(!matcher.allowed()->contains(256));
  CHECK(!matcher.allowed()->contains(kEos));
  REQUIRE(matcher.advance('<'));
  CHECK(!matcher.allowed()->contains(256));
  CHECK(matcher.allowed()->contains(kEos));
  CHECK(!matcher.allowed()->contains('x'));
}

TEST_CASE("what is too large is told of tools and a form together") {
  Grammars grammars(test::byte_tokenizer(), kVocab, {kEos});
  HeldAnswer held = held_to(form_of(AnswerForm::Notation::kRegex, "a"));
  const char* large = R"({"type":"object","properties":{"a":{"type":"array","maxItems":90000,)"
                      R"("items":{"type":"string","maxLength":90000}}}})";
  held.calls = HeldCalls{.tools = {{.name = "f", .parameters = large, .is_strict = true}}};
  const auto refused = grammars.grammar_of(held).error();
  CHECK(refused.param == "tools");
  CHECK_THAT(refused.message, Catch::StartsWith("tools and field.place: it takes more than"));
  held.calls->tools[0].is_strict = false;
  CHECK(matches(grammars.grammar_of(held), "a"));
}

TEST_CASE("a special token that is a tag of calls is one way to write it, in calls only") {
  constexpr TokenId kTag = 258;
  Grammars grammars(test::byte_tokenizer("[TOOL_CALLS]"), kVocab + 1, {kEos});
  const auto form = grammars.grammar_of(held_to(form_of(AnswerForm::Notation::kRegex, ".*"))).value();
  CHECK(!grammar::Matcher(form, true).allowed()->contains(kTag));
  HeldAnswer held;
  held.calls = HeldCalls{.format = text::ToolFormat::kMistral, .tools = {{.name = "f"}}, .are_wanted = true};
  const auto calls = grammars.grammar_of(held).value();
  CHECK(matches(grammars.grammar_of(held), "[TOOL_CALLS]f[ARGS]{}"));
  grammar::Matcher matcher(calls, true);
  CHECK(matcher.allowed()->contains(kTag));
  CHECK(matcher.allowed()->contains('['));
  REQUIRE(matcher.advance(kTag));
  CHECK(!matcher.allowed()->contains(kTag));
  for (const char c : std::string_view("f[ARGS]{}")) REQUIRE(matcher.advance(static_cast<uint8_t>(c)));
  CHECK(matcher.may_end());
  CHECK(matcher.allowed()->contains(kTag));  // another call
}
