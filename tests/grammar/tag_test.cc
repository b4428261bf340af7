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
