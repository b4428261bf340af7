#include <catch2/catch.hpp>
#include <set>

#include "grammar/ebnf.h"
#include "grammar/json_schema.h"
#include "grammar/grammar_fixtures.h"
#include "support/mentions.h"
#include "support/test_seed.h"

using namespace millrace;
using namespace millrace::test;

namespace {

/// Tokens of several bytes from an alphabet that grammars below use, each byte of it, some twice, and two ends.
std::shared_ptr<const grammar::Vocabulary> random_vocabulary(std::mt19937_64& random) {
  const std::string alphabet = "{}[]\",: \n\\u0123456789-.eabcdfghlnrstuE+/\xC3\xA9";
  std::vector<std::string> texts;
  for (const char c : alphabet) texts.emplace_back(1, c);
  while (texts.size() < 700) {
    std::string text;
    for (size_t length = 1 + random() % 6; text.size() < length;) text += alphabet[random() % alphabet.size()];
    texts.push_back(text);
  }
  const std::string words[] = {"true",   "false", "null", "\":", "\",", "{\"",   "\"}", "\": \"",
                               "\", \"", "},",    "],",   "a\"", "\\n", "\\u00", "e\"}"};
  texts.insert(texts.end(), std::begin(words), std::end(words));
  std::shuffle(texts.begin(), texts.end(), random);
  texts.emplace_back();
  texts.emplace_back();
  return std::make_shared<const grammar::Vocabulary>(texts);
}

std::vector<Result<GrammarPtr>> some_grammars(const std::shared_ptr<const grammar::Vocabulary>& vocabulary) {
  const auto size = static_cast<TokenId>(vocabulary->size());
  const std::vector<TokenId> ends = {size - 1, size - 2};
  std::vector<Result<GrammarPtr>> grammars;
  for (const char* schema :
       {R"({"type":"object","properties":{"a":{"type":"string"},"b":{"type":"array","items":{"type":"integer"}}}})",
        R"({"type":"array","items":{"anyOf":[{"type":"number"},{"type":"null"},{"enum":["a","abc","\u00e9"]}]}})",
        R"({"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"c":{"$ref":"#/$defs/n"}}}}})",
        R"({"type":"object","required":["a"],"properties":{"a":{"type":"string","maxLength":5,"minLength":2}},
            "additionalProperties":{"type":"boolean"}})",
        R"({"type":"string","pattern":"^a(b|c)*e{2,}$"})", "{}"}) {
    grammars.push_back(grammar_from_schema(schema, vocabulary, ends));
  }
  for (const char* text : {"root ::= \"a\" root \"b\" | \"ab\"", "root ::= (\"a\" | \"ab\" | \"b\")* \"c\"",
                           "root ::= list\nlist ::= \"[\" (list (\",\" list)*)? \"]\""}) {
    grammars.push_back(grammar_from_ebnf(text, vocabulary, ends));
  }
  return grammars;
}

}  // namespace

TEST_CASE("what may come next is exactly what the grammar goes on by") {
  INFO("seed " << test_seed());
  std::mt19937_64 random(test_seed());
  const auto vocabulary = random_vocabulary(random);
  size_t index = 0;
  for (const auto& grammar : some_grammars(vocabulary)) {
    INFO("grammar " << index++);
    REQUIRE(message_of(grammar) == "no error");
    for (int trial = 0; trial < 12; ++trial) {
      const bool samples_end_token = trial % 2 == 0;
      grammar::Matcher matcher(*grammar, samples_end_token);
      std::string text;
      for (int step = 0; step < 40 && !matcher.must_end(); ++step) {
        const auto allowed = matcher.allowed();
        REQUIRE(allowed != nullptr);
        std::vector<TokenId> found;
        for (TokenId token = 0; token < static_cast<TokenId>(vocabulary->size()); ++token) {
          grammar::Matcher next = matcher;
          INFO(text << " + " << vocabulary->text_of(token));
          REQUIRE(next.advance(token) == allowed->contains(token));
          if (allowed->contains(token) && !vocabulary->text_of(token).empty()) found.push_back(token);
        }
        if (found.empty()) break;
        const TokenId token = found[random() % found.size()];
        REQUIRE(matcher.advance(token));
        text += vocabulary->text_of(token);
      }
    }
  }
}

TEST_CASE("stop tokens may be sampled where the output is complete") {
  const auto grammar = grammar_from_regex("ab*").value();
  grammar::Matcher matcher(grammar, true);
  CHECK(!matcher.may_end());
  CHECK(!matcher.allowed()->contains(kEnd));
  CHECK(!matcher.advance(kEnd));
  REQUIRE(matcher.advance('a'));
  CHECK(matcher.may_end());
  CHECK(!matcher.must_end());
  CHECK(matcher.allowed()->contains(kEnd));
  CHECK(matcher.allowed()->count() == 2);
  CHECK(matcher.advance(kEnd));
  grammar::Matcher endless(grammar, false);
  REQUIRE(endless.advance('a'));
  CHECK(endless.allowed()->count() == 1);
  CHECK(!endless.advance(kEnd));
  CHECK(!endless.advance(-1));
  CHECK(!endless.advance(1000));
}

TEST_CASE("a grammar whose text is whole says when nothing can follow") {
  const auto grammar = grammar_from_regex("ab|abc").value();
  grammar::Matcher matcher(grammar, false);
  REQUIRE(matcher.advance('a'));
  REQUIRE(matcher.advance('b'));
  CHECK(matcher.may_end());
  CHECK(!matcher.must_end());
  REQUIRE(matcher.advance('c'));
  CHECK(matcher.must_end());
  CHECK(matcher.allowed() == nullptr);
}

/// Returns whether the grammar is there and may begin with the token.
static bool matcher_allows(const Result<GrammarPtr>& grammar, TokenId token) {
  return grammar.has_value() && grammar::Matcher(*grammar, true).allowed()->contains(token);
}

TEST_CASE("what a vocabulary cannot spell is told") {
  const auto no_b = std::make_shared<const grammar::Vocabulary>(std::vector<std::string>{"a", "ab", "c"});
  CHECK_THAT(message_of(grammar_from_regex("aabbc", no_b, {})), Mentions("no token is 'b' alone"));
  const auto whole = std::make_shared<const grammar::Vocabulary>(std::vector<std::string>{"<end>", "a", "d"});
  CHECK(matcher_allows(grammar_from_ebnf("root ::= \"a\" \"<end>\"", whole, {}), 1));
  const auto cut = std::make_shared<const grammar::Vocabulary>(std::vector<std::string>{"<end>", "a", "a<"});
  CHECK_THAT(message_of(grammar_from_ebnf("root ::= \"a\" \"<end>\"", cut, {})), Mentions("no token is '<' alone"));
  const auto grammar = grammar_from_regex("a[abc]*", no_b, {}).value();
  grammar::Matcher matcher(grammar, true);
  REQUIRE(matcher.advance(0));
  CHECK(matcher.allowed()->count() == 2);
  CHECK(!matcher.allowed()->contains(1));
}

TEST_CASE("repetition by recursion does not nest") {
  const auto grammar = grammar_from_ebnf("root ::= [a-z] root | \".\"").value();
  CHECK(matches(grammar, std::string(5000, 'x') + "."));
}

TEST_CASE("what nests too deeply ends") {
  const auto grammar = grammar_from_ebnf("root ::= \"[\" root? \"]\"").value();
  CHECK(matches(grammar, std::string(400, '[') + std::string(400, ']')));
  grammar::Matcher matcher(grammar, true);
  size_t depth = 0;
  while (matcher.advance('[')) ++depth;
  CHECK(depth < 600);
  // It can still be closed.
  REQUIRE(matcher.allowed() != nullptr);
  for (size_t i = 0; i < depth; ++i) REQUIRE(matcher.advance(']'));
  CHECK(matcher.must_end());
}

TEST_CASE("outputs are followed after the DFA cache was dropped") {
  grammar::Definition definition;
  definition.root = grammar::any_json_object(definition);
  const auto grammar = grammar::Grammar::compile(definition, byte_vocabulary(), {kEnd}).value();
  std::mt19937_64 random(7);
  for (int i = 0; i < 200; ++i) {
    // Objects in arrays in another order each time: a few hundred places that no other answer comes to, of 1 KiB each.
    std::string text = "{\"a\":";
    std::string closing;
    for (int depth = 0; depth < 60; ++depth) {
      const bool is_array = random() % 2 == 0;
      text += is_array ? "[" : "{\"b\":";
      closing.insert(0, is_array ? "]" : "}");
    }
    REQUIRE(matches(grammar, text + "1" + closing + "}"));
  }
}

TEST_CASE("An output that matches in many ways is followed exactly") {
  const auto counted = grammar_from_regex("((a?){2000}){2000}b").value();
  CHECK(matches(counted, std::string(300, 'a') + "b"));
  CHECK_FALSE(matches(counted, std::string(300, 'a') + "c"));
  const auto later = grammar_from_regex("ccc+d((a?){3000}){40}b").value();
  CHECK(matches(later, "cccdaab"));
  // Each text of n letters a has 2 to the n sets of returns.
  const auto twofold = grammar_from_ebnf("root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"d\"").value();
  std::string returns;
  for (int i = 0; i < 200; ++i) returns += i % 3 == 0 ? 'b' : 'c';
  CHECK(matches(twofold, std::string(200, 'a') + "d" + returns));
  CHECK_FALSE(matches(twofold, std::string(200, 'a') + "d" + returns + "b"));
  const auto both = grammar_from_ebnf("root ::= \"a\" root root | \"b\"").value();
  CHECK(matches(both, std::string(100, 'a') + std::string(101, 'b')));
  CHECK_FALSE(matches(both, std::string(100, 'a') + std::string(100, 'b')));
  const auto any = grammar_from_ebnf("root ::= \"a\" root root | \"a\"").value();
  CHECK(matches(any, std::string(61, 'a')));
  CHECK_FALSE(matches(any, std::string(60, 'a')));
}

TEST_CASE("A grammar whose first mask takes too long is refused") {
  grammar::Definition definition;
  definition.root = grammar::parse_regex("(.*a|.*b)c").value();
  const auto refused = grammar::Grammar::compile(definition, byte_vocabulary(), {}, {.first_mask_steps = 20});
  REQUIRE(refused.has_error());
  CHECK(refused.error().code == ErrorCode::kInvalidArgument);
  CHECK(refused.error().message.find("20 steps") != std::string::npos);
  CHECK(grammar::Grammar::compile(definition, byte_vocabulary(), {}, {.precompute_steps = 0}).has_value());
}

TEST_CASE("An output whose position takes too much memory ends") {
  grammar::Definition definition;
  definition.root = grammar::parse_ebnf("root ::= \"a\" root root | \"a\" root | \"a\"", definition).value();
  const auto grammar =
      grammar::Grammar::compile(definition, byte_vocabulary(), {}, {.dfa_bytes = 200'000, .position_bytes = 20'000})
          .value();
  grammar::Matcher matcher(grammar, false);
  int length = 0;
  while (length < 1000 && matcher.allowed() != nullptr) {
    REQUIRE(matcher.allowed()->members(9) == std::vector<TokenId>{'a'});
    matcher.append('a');
    ++length;
    grammar::WorkBudget whole = grammar::WorkBudget::unlimited();
    REQUIRE(matcher.settle(whole));
  }
  CHECK(length > 20);
  CHECK(length < 1000);
  CHECK(matcher.is_too_large());
  CHECK_FALSE(matcher.advance('a'));
}

TEST_CASE("left recursion is refused by name") {
  const std::string told =
      " refers to itself before it has any text (left recursion); write a repetition, as in term (\"+\" term)*";
  CHECK(message_of(grammar_from_ebnf("root ::= root \"a\" | \"b\"")) == "root" + told);
  CHECK(message_of(grammar_from_ebnf("root ::= other \"x\"\nother ::= \"\" root | \"y\"")) == "root" + told);
  CHECK(message_of(grammar_from_ebnf("root ::= blank root \"a\" | \"b\"\nblank ::= \" \"*")) == "root" + told);
  CHECK(message_of(grammar_from_ebnf("root ::= \"a\" root")) == "no text matches it");
  CHECK(message_of(grammar_from_ebnf("root ::= \"a\" root | \"b\"")) == "no error");
}
