#include <fmt/format.h>
#include <fmt/ranges.h>

#include <catch2/catch.hpp>
#include <random>

#include "grammar/grammar_fixtures.h"
#include "grammar/until_tag.h"
#include "grammar/without_tags.h"

using namespace millrace;
using namespace millrace::test;

namespace {

GrammarPtr compiled(grammar::Definition definition) {
  return grammar::Grammar::compile(definition, byte_vocabulary(), {kEnd}).value();
}

GrammarPtr ended(const std::vector<std::string_view>& tags, bool may_end) {
  grammar::Definition definition;
  definition.root = grammar::until_tag(tags, grammar::literal("!"), may_end);
  return compiled(std::move(definition));
}

GrammarPtr filtered(std::string_view lark, const std::vector<std::string_view>& tags) {
  grammar::Definition source;
  source.root = grammar::parse_lark(lark, source).value();
  grammar::Definition definition;
  definition.root = grammar::without_tags(source, tags, definition).value();
  return compiled(std::move(definition));
}

/// Returns the length of the text up to the end of the first tag in it, and that tag; without one the number of tags.
std::pair<size_t, size_t> first_tag(std::string_view text, const std::vector<std::string_view>& tags) {
  for (size_t end = 0; end <= text.size(); ++end) {
    for (size_t tag = 0; tag < tags.size(); ++tag) {
      if (text.substr(0, end).ends_with(tags[tag])) return {end, tag};
    }
  }
  return {text.size(), tags.size()};
}

/// Returns the texts of up to `max_length` characters of an alphabet.
std::vector<std::string> all_texts(const std::vector<std::string>& alphabet, size_t max_length) {
  std::vector<std::string> texts = {""};
  for (size_t begin = 0, length = 0; length < max_length; ++length) {
    const size_t end = texts.size();
    for (; begin < end; ++begin) {
      for (const std::string& c : alphabet) texts.push_back(texts[begin] + c);
    }
  }
  return texts;
}

/// Tags that repeat their beginnings, hold each other, or have characters of several bytes.
const std::vector<std::vector<std::string_view>> kTagSets = {
    {"a"}, {"aab"}, {"abab"}, {"ab", "abc"}, {"b", "abc"}, {"aab", "aba"}, {"a<é", "a<b"}, {"é", "<é<"}};
const std::vector<std::string> kAlphabet = {"a", "b", "<", "é"};

}  // namespace

TEST_CASE("a text goes on after the first of its tags") {
  for (const auto& tags : kTagSets) {
    const GrammarPtr must_end = ended(tags, false);
    const GrammarPtr may_end = ended(tags, true);
    for (const std::string& text : all_texts(kAlphabet, 5)) {
      const auto [length, tag] = first_tag(text, tags);
      INFO(fmt::format("{} {}", fmt::join(tags, " "), text));
      CHECK(matches(must_end, text + "!") == (tag == 0 && length == text.size()));
      CHECK_FALSE(matches(must_end, text));
      CHECK(matches(may_end, text) == (tag == tags.size()));
    }
  }
}

TEST_CASE("a grammar without tags has its other texts") {
  constexpr const char* kSources[] = {
      "start: /[ab<é]*/", "start: nest*\nnest: \"a\" nest* \"b\" | /[<é]/", "start: (\"a\" | \"<é\" | \"b\"~2..3)~1..3",
      "start: pair pair?\npair: \"a\"? | \"<\" pair \"é\" | \"ab\"",
      "start: word (\"b\" word)*\nword: \"a\" word? | \"b\"\n%ignore \"<\"\n%ignore \"é\""};
  for (const std::string_view source : kSources) {
    const GrammarPtr whole = grammar_from_lark(source).value();
    for (const auto& tags : kTagSets) {
      const GrammarPtr rest = filtered(source, tags);
      for (const std::string& text : all_texts(kAlphabet, 5)) {
        INFO(fmt::format("{}: {} {}", source, fmt::join(tags, " "), text));
        CHECK(matches(rest, text) == (matches(whole, text) && first_tag(text, tags).second == tags.size()));
      }
    }
  }
}

TEST_CASE("a grammar that avoids its tags in too many ways is refused") {
  grammar::Definition source;
  source.root = grammar::parse_lark("start: (\"a\" | \"b\")~3000", source).value();
  const std::vector<std::string_view> tags = {"ab"};
  grammar::Definition definition;
  CHECK_THAT(grammar::without_tags(source, tags, definition).error().message,
             Catch::StartsWith("it repeats a part up to 3000 times that may hold some of the tag that ends it"));
  source.root = grammar::parse_lark("start: (\"a\" | \"b\")~1000", source).value();
  CHECK(grammar::without_tags(source, tags, definition, 500).error().message ==
        "it has too many ways to avoid the tag that ends it");
  CHECK(definition.rules.empty());
  CHECK(grammar::without_tags(source, tags, definition, 50'000).has_value());
}

namespace {

/// The tags of a vocabulary whose other tokens are bytes.
constexpr TokenId kOpenTag = kEnd + 1;
constexpr TokenId kCloseTag = kEnd + 2;
constexpr TokenId kPartTag = kEnd + 3;

std::shared_ptr<const grammar::Vocabulary> tag_vocabulary() {
  std::vector<std::string> texts = byte_texts();
  texts.insert(texts.end(), {"<t>", "</t>", "｜d｜"});
  return std::make_shared<const grammar::Vocabulary>(texts, std::vector<TokenId>{kOpenTag, kCloseTag, kPartTag});
}

GrammarPtr over_tags(const grammar::ExpressionPtr& root) {
  grammar::Definition definition;
  definition.root = root;
  return grammar::Grammar::compile(definition, tag_vocabulary(), {kEnd}).value();
}

/// Returns a text as bytes, in which T, C and D stand for the three tags.
std::vector<TokenId> tokens_of(std::string_view text) {
  std::vector<TokenId> tokens;
  for (const char c : text) {
    tokens.push_back(c == 'T' ? kOpenTag : c == 'C' ? kCloseTag : c == 'D' ? kPartTag : static_cast<uint8_t>(c));
  }
  return tokens;
}

bool matches_tokens(const GrammarPtr& grammar, std::string_view text) {
  grammar::Matcher matcher(grammar, true);
  for (const TokenId token : tokens_of(text)) {
    const auto allowed = matcher.allowed();
    const bool is_allowed = allowed != nullptr && allowed->contains(token);
    const bool advances = matcher.advance(token);
    CHECK(advances == is_allowed);
    if (!advances) return false;
  }
  return matcher.may_end();
}

}  // namespace

TEST_CASE("Tags of a vocabulary match where a literal spells them") {
  const GrammarPtr spelled = over_tags(grammar::literal("a<t>b</t>"));
  for (const char* text : {"a<t>b</t>", "aTb</t>", "a<t>bC", "aTbC"}) CHECK(matches_tokens(spelled, text));
  for (const char* text : {"T", "aC", "aTT", "aTbCC", "a<T"}) CHECK_FALSE(matches_tokens(spelled, text));
  // Regular expressions are read character by character.
  const auto regex = grammar_from_regex("x?<t>[a-z<>/]*(</t>|!)", tag_vocabulary()).value();
  for (const char* text : {"TaC", "xT!", "<t>a</t>"}) CHECK(matches_tokens(regex, text));
  for (const char* text : {"TaTC", "C", "TaC!C"}) CHECK_FALSE(matches_tokens(regex, text));
  const auto ebnf = grammar_from_ebnf(R"(root ::= "<t>" [a-z]+ "</t>")", tag_vocabulary()).value();
  CHECK(matches_tokens(ebnf, "TaC"));
  // The bytes of which a tag's text consists in the tree are no tokens of a text.
  CHECK_FALSE(grammar::Matcher(spelled, true).advance(0xFF));
}

TEST_CASE("Tags of a vocabulary are no part of a text") {
  const auto any = grammar_from_regex("(.|\n)*", tag_vocabulary()).value();
  CHECK(matches_tokens(any, "a<t>b</t>"));
  for (const char* text : {"T", "aC", "D"}) CHECK_FALSE(matches_tokens(any, text));
  constexpr const char* kSchema =
      R"({"type":"object","properties":{"a":{"type":"string"},"b":{"enum":["<t>"]},"c":{"pattern":"t"}}})";
  const auto schema = grammar_from_schema(kSchema, tag_vocabulary()).value();
  for (const char* text : {R"({"a": "<t>x</t>"})", R"({"b": "T"})", R"({"b": "<t>"})", R"({"c": "<t>"})"}) {
    CHECK(matches_tokens(schema, text));
  }
  for (const char* text : {R"({"a": "T"})", R"({"a": "xC"})", R"({"a": "x"C})", R"({"b": "TC"})", R"({"c": "T"})"}) {
    CHECK_FALSE(matches_tokens(schema, text));
  }
}

TEST_CASE("A text before a tag may hold the tags that are named") {
  const std::vector<std::string_view> tags = {"</t>"};
  const GrammarPtr plain = over_tags(grammar::until_tag(tags, grammar::literal("!"), true));
  for (const char* text : {"", "abC!", "ab</t>!", "C!", "</C!", "ab"}) CHECK(matches_tokens(plain, text));
  for (const char* text : {"T", "aTC!", "D", "CC"}) CHECK_FALSE(matches_tokens(plain, text));
  const std::vector<std::string_view> words = {"<t>"};
  const GrammarPtr named = over_tags(grammar::until_tag(tags, grammar::literal("!"), true, words));
  for (const char* text : {"T", "aTTbC!", "aT</t>!", "<t>C!"}) CHECK(matches_tokens(named, text));
  CHECK_FALSE(matches_tokens(named, "aD"));
  // A tag may be a part of a longer one.
  const std::vector<std::string_view> longer = {"</｜d｜p>"};
  const GrammarPtr parts = over_tags(grammar::until_tag(longer, grammar::literal("!"), false));
  for (const char* text : {"a</Dp>!", "</</Dp>!", "a</｜d｜p>!"}) CHECK(matches_tokens(parts, text));
  for (const char* text : {"aD", "</Dq", "</DD", "C"}) CHECK_FALSE(matches_tokens(parts, text));
}

TEST_CASE("A tag is forced where nothing else can come") {
  const GrammarPtr grammar = over_tags(grammar::literal("<t>x"));
  grammar::Matcher matcher(grammar, true);
  CHECK(matcher.forced(*matcher.allowed()) == kOpenTag);
  CHECK(grammar->vocabulary().text_of(kOpenTag) == "<t>");
}
