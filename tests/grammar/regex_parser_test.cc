#include "grammar/regex_parser.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <catch2/catch.hpp>
#include <initializer_list>
#include <memory>
#include <optional>
#include <random>

#include "grammar/grammar_fixtures.h"
#include "support/test_seed.h"

using namespace millrace;
using namespace millrace::test;

namespace {

struct PatternCase {
  const char* pattern;
  std::vector<std::string> good;
  std::vector<std::string> bad;
};

void check_patterns(std::initializer_list<PatternCase> cases) {
  for (const PatternCase& item : cases) {
    INFO(item.pattern);
    const auto grammar = grammar_from_regex(item.pattern);
    REQUIRE(grammar.has_value());
    for (const std::string& text : item.good) {
      INFO(text.substr(0, 32));
      CHECK(matches(*grammar, text));
    }
    for (const std::string& text : item.bad) {
      INFO(text.substr(0, 32));
      CHECK(!matches(*grammar, text));
    }
  }
}

}  // namespace

TEST_CASE("a pattern matches whole texts") {
  check_patterns({
      {"abc", {"abc"}, {"", "ab", "abcd", "xabc"}},
      {"a|bc|d", {"a", "bc", "d"}, {"", "b", "ad", "abc"}},
      {"^abc$", {"abc"}, {"ab", "^abc$"}},
      {"a*b+c?", {"b", "aabbc", "bb"}, {"a", "c", "abcc"}},
      {"(ab){2,3}", {"abab", "ababab"}, {"ab", "abababab", "aba"}},
      {"a{3}", {"aaa"}, {"aa", "aaaa"}},
      {"a{2,}", {"aa", "aaaaaa"}, {"a", ""}},
      {"a{,2}b", {"b", "ab", "aab"}, {"aaab"}},
      {"a{x", {"a{x"}, {"ax", "a"}},
      {"a+?b*?", {"a", "aab"}, {"b"}},
      {"[a-cx]+", {"abcx"}, {"d", ""}},
      {"[^a-c]", {"d", "\xC3\xA9", "\xF0\x9F\x98\x80"}, {"a", "", "dd"}},
      {"[]a]+", {"]a"}, {"b"}},
      {"[a-]+", {"a-"}, {"b"}},
      {"[\\d\\-x]+", {"1-x"}, {"a"}},
      {R"(\d{3}-\d{4})", {"123-4567"}, {"1234567", "123-456"}},
      {R"(\w+\s\S)", {"a_1 !", "b\t."}, {"a  ", " a"}},
      {R"(\D\W)", {"a!"}, {"1!", "aa"}},
      {".", {"a", "\xE2\x82\xAC"}, {"\n", "", "ab"}},
      {R"(\x41\u00e9\u{1F600}\t)", {"A\xC3\xA9\xF0\x9F\x98\x80\t"}, {"A"}},
      {R"(\.\*\[\(\\\/)", {".*[(\\/"}, {"a"}},
      {"(?:a|b)(?P<name>c)(?<other>d)", {"acd", "bcd"}, {"a", "cd"}},
      {"(a(b(c)?)?)?d", {"d", "ad", "abd", "abcd"}, {"acd", ""}},
      {"[\xC3\xA0-\xC3\xBF]", {"\xC3\xA9"}, {"\xC3\x9F", "e", "\xC3"}},
      {"(a*)*b", {"b", "aaab"}, {"a"}},
      {"(|a)b", {"b", "ab"}, {"a"}},
      {"(?i)Yes|no", {"yes", "YES", "nO"}, {"y", "yesno"}},
      {"a(?i:b[x-z])c", {"abxc", "aBYc"}, {"Abxc", "abxC"}},
      {"((?i)a)b", {"ab", "Ab"}, {"aB"}},
      {"(?i)[^a]", {"b"}, {"a", "A"}},
      {"(?is)a.", {"A\n", "ax"}, {"a"}},
      {R"(\Aab\z|\Ac\Z)", {"ab", "c"}, {"abz", "Aab"}},
      {R"(\ud83d\ude00)", {"\xF0\x9F\x98\x80"}, {""}},
      {R"(\S)", {"a", "\xC3\xA9"}, {" ", "\xC2\xA0", "\xE3\x80\x80"}},
      {R"([^\sx])", {"a"}, {"\xC2\xA0", " ", "x"}},
      {R"([^\S])", {" "}, {"\xC2\xA0", "a"}},
      {"(((((a{8}){8}){8}){8}))", {std::string(4096, 'a')}, {std::string(4095, 'a'), std::string(4097, 'a')}},
  });
}

TEST_CASE("properties boundaries and anchors match anywhere") {
  check_patterns({
      {R"(\p{L}+)", {"a", "\xC3\xA9t\xC3\xA9", "\xE6\x97\xA5"}, {"", "1", "a b", "\xE2\x82\xAC"}},
      {R"(\p{Lu}\p{Ll}{2,20})", {"Abc", "\xC3\x89te"}, {"abc", "ABc", "Ab"}},
      {R"(\pL\PL)", {"a1", "\xC3\xA9 "}, {"ab", "11"}},
      {R"([\p{L}\p{N}_-]{1,63})", {"a-1", "\xC3\xA9\xC2\xB2"}, {"", "a b"}},
      {R"([^\p{L}]\p{^L})", {"1 "}, {"a1", "1a"}},
      {R"(\p{Script=Greek}\p{sc=Latn}\p{gc=Nd})",
       {"\xCE\xB1z9"},
       {"az9",
        "\xCE\xB1\xCE\xB1"
        "9"}},
      {R"(\p{Script=Han}+|\p{Hiragana}+)", {"\xE6\x97\xA5", "\xE3\x81\x82"}, {"a", "\xE6\x97\xA5\xE3\x81\x82"}},
      {R"(.*\bcat\b.*)",
       {"cat", "a cat.",
        "\xE2\x80\x94"
        "cat\xE2\x80\xA6"},
       {"concat", "cats", "cat\xC3\xA9", "_cat"}},
      {R"(\b\w+\b( \b\w+\b)*)", {"a", "ab cd"}, {"", " ", "ab ", "ab  cd"}},
      {R"(a\Bb\B.)", {"abc"}, {"ab ", "ab"}},
      {R"(.\B.)", {"ab", "  ", "\xC3\xA9\xC3\xA9"}, {"a ", "a\xC3\xA9"}},
      {R"((?:^|x)a(?:$|y))", {"a", "xa", "ay", "xay"}, {"xx", "aa", "axy"}},
  });
}

TEST_CASE("what a pattern cannot say is refused by name") {
  const std::pair<const char*, const char*> cases[] = {
      {"(a", "wanted ')' (at byte 2)"},
      {"a)", "')' closes nothing (at byte 1)"},
      {"*a", "a quantifier has nothing to repeat (at byte 0)"},
      {"a**", "a quantifier after a quantifier (at byte 2)"},
      {"a*+", "possessive quantifiers are not supported (at byte 2)"},
      {"[a", "wanted ']' (at byte 2)"},
      {"[z-a]", "a range is the wrong way round (at byte 4)"},
      {"[a-\\d]", "a range wants single characters (at byte 5)"},
      {"[[:alpha:]]", "named classes are not supported (at byte 1)"},
      {"a????????????????????????????????????????", "too many quantifiers in a row (at byte 34)"},
      {"a{3,2}", "the counts are the wrong way round (at byte 6)"},
      {"a{200000}", "a count is larger than 100000 (at byte 7)"},
      {"(a)\\1", "references back are not supported (at byte 5)"},
      {"(?=a)", "looking ahead is not supported (at byte 2)"},
      {"(?<!a)", "lookbehind is not supported (at byte 3)"},
      {"(?m)a", "this kind of group is not supported (at byte 2)"},
      {"\\p{Klingon}", "the property 'Klingon' is not supported (at byte 11)"},
      {"\\p{scx=Greek}", "properties by scx are not supported (at byte 13)"},
      {"\\p{L", "wanted '}' after the name of a property (at byte 3)"},
      {"\\p", "wanted the name of a property (at byte 2)"},
      {"a\\zb", "anchors are supported at the ends of the pattern (at byte 3)"},
      {"a^b", "no text matches it"},
      {"a$b", "no text matches it"},
      {"a\\bb", "no text matches it"},
      {"\\q", "'\\q' is not supported (at byte 2)"},
      {"\\x4", "wanted 2 hexadecimal digits (at byte 3)"},
      {"\\", "it ends too early (at byte 1)"},
      {"\xFF", "it is not valid UTF-8 (at byte 0)"},
      {"[^\\d\\D]", "no text matches it"},
      {"a*[^\\s\\S]", "no text matches it"},
      {"", "only the empty text matches it"},
      {"(){5}", "only the empty text matches it"},
      {"[a-c]{100000}[a-c]{100000}[a-c]{100000}", "it takes more than 200000 states (large counts, or many parts)"},
  };
  for (const auto& [pattern, message] : cases) {
    INFO(pattern);
    CHECK(message_of(grammar_from_regex(pattern)) == message);
  }
  const std::string deep = std::string(200, '(') + "a" + std::string(200, ')');
  CHECK(message_of(grammar_from_regex(deep)) == "groups are nested too deeply (at byte 101)");
}

namespace {

std::string random_pattern(std::mt19937_64& random, int depth, bool with_assertions = false) {
  const auto pick = [&](int count) { return static_cast<int>(random() % static_cast<unsigned>(count)); };
  std::string pattern;
  const int terms = 1 + pick(3);
  for (int i = 0; i < terms; ++i) {
    if (with_assertions && pick(3) == 0) pattern += std::array{"\\b", "\\B", "^", "$"}[static_cast<size_t>(pick(4))];
    switch (pick(depth > 0 ? 6 : 4)) {
      case 0: pattern += static_cast<char>('a' + pick(3)); break;
      case 1: pattern += "[ab]"; break;
      case 2: pattern += "[^b]"; break;
      case 3: pattern += "."; break;
      case 4:
        pattern += "(" + random_pattern(random, depth - 1, with_assertions) + "|" +
                   random_pattern(random, depth - 1, with_assertions) + ")";
        break;
      default: pattern += "(?:" + random_pattern(random, depth - 1, with_assertions) + ")";
    }
    const char* quantifiers[] = {"", "", "", "*", "+", "?", "{2}", "{1,3}", "{0,2}"};
    pattern += quantifiers[pick(9)];
  }
  return pattern;
}

/// A pattern that PCRE matches against whole texts.
class PcrePattern {
 public:
  explicit PcrePattern(const std::string& pattern) {
    const std::string whole = "\\A(?:" + pattern + ")\\z";
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(whole.data()), whole.size(), PCRE2_UTF | PCRE2_UCP, &error,
                              &offset, nullptr));
    REQUIRE(code_ != nullptr);
    data_.reset(pcre2_match_data_create_from_pattern(code_.get(), nullptr));
    limits_.reset(pcre2_match_context_create(nullptr));
    pcre2_set_match_limit(limits_.get(), 1'000'000);
  }

  /// Returns nothing where the search takes too many steps, which nested quantifiers can make it do.
  [[nodiscard]] std::optional<bool> matches(const std::string& text) const {
    const int rc = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, 0, data_.get(),
                               limits_.get());
    if (rc == PCRE2_ERROR_MATCHLIMIT) return std::nullopt;
    REQUIRE((rc > 0 || rc == PCRE2_ERROR_NOMATCH));
    return rc > 0;
  }

 private:
  template <auto kFree>
  struct Freed {
    void operator()(auto* part) const { kFree(part); }
  };
  std::unique_ptr<pcre2_code, Freed<&pcre2_code_free>> code_;
  std::unique_ptr<pcre2_match_data, Freed<&pcre2_match_data_free>> data_;
  std::unique_ptr<pcre2_match_context, Freed<&pcre2_match_context_free>> limits_;
};

}  // namespace

TEST_CASE("random patterns match what PCRE matches") {
  INFO("seed " << test_seed());
  std::mt19937_64 random(test_seed());
  int compared = 0;
  int too_long = 0;
  for (int trial = 0; trial < 500; ++trial) {
    const bool with_assertions = trial >= 300;
    const std::string pattern = random_pattern(random, 2, with_assertions);
    INFO(pattern);
    const auto grammar = grammar_from_regex(pattern);
    const std::string refusal = message_of(grammar);
    if (refusal == "only the empty text matches it") continue;
    // Conditions within large counts may take too many states.
    if (with_assertions && refusal.find("states") != std::string::npos) continue;
    if (!with_assertions) REQUIRE(grammar.has_value());
    const PcrePattern other(pattern);
    for (int i = 0; i < 60; ++i) {
      std::string text;
      const char* letters = with_assertions ? "ab " : "abc";
      for (size_t length = random() % 8; text.size() < length;) text += letters[random() % 3];
      INFO(text);
      const std::optional<bool> wanted = other.matches(text);
      ++(wanted ? compared : too_long);
      if (!wanted) continue;
      const bool is_match = grammar.has_value() && matches(*grammar, text);
      REQUIRE(is_match == *wanted);
    }
  }
  CHECK(too_long * 20 < compared);
}
