#include "text/tokenizer/regex.h"

#include <catch2/catch.hpp>
#include <string>

#include "base/utf8.h"
#include "text/unicode_properties.h"

using namespace millrace::text;

namespace {

/// The first match of `pattern`, or "none".
std::string first_match(std::string_view pattern, std::string_view text) {
  RegexScratch scratch;
  const auto match = Regex::compile(pattern).find(text, 0, scratch);
  return match ? std::string(text.substr(match->begin, match->end - match->begin)) : "none";
}

}  // namespace

TEST_CASE("a script is its own characters without shared ones") {
  // U+3001 and U+30FC are common to several scripts.
  const std::string text = "\u4e00\u3001\u30a2\u30fc";
  CHECK(first_match("\\p{Han}+", text) == "\u4e00");
  CHECK(first_match("[\\p{Han}]+", text) == "\u4e00");
  CHECK(first_match("\\p{Katakana}+", text) == "\u30a2");
  CHECK(first_match("\\P{Han}+", text) == "\u3001\u30a2\u30fc");
  CHECK(first_match("\\p{^Han}+", text) == "\u3001\u30a2\u30fc");
  CHECK(first_match("\\\\p\\{Han}", "\\p{Han}") == "\\p{Han}");
  CHECK(first_match("\\p{Lo}+", text) == "\u4e00");
  CHECK(first_match("\\p{L}+", "a\u4e00") == "a\u4e00");
}

TEST_CASE("a match that backtracks far is found whole") {
  const std::string text(1 << 20, '!');
  CHECK(first_match("(?:(?!\\w)\\S)+", text).size() == text.size());
}

TEST_CASE("an interval with plus repeats the group as in Oniguruma") {
  CHECK(first_match("a{1,2}+", "aaaaa") == "aaaaa");
  CHECK(first_match("a{1,3}+a", "aaaa") == "aaaa");
  CHECK(first_match("a{2}+", "aaaaa") == "aaaa");
  CHECK(first_match("xa{2}?", "xaa") == "xaa");
  CHECK(first_match("xa{2}?", "xa") == "x");
  CHECK(first_match("xa{1,2}?", "xaa") == "xa");
  CHECK(first_match("a{,2}b", "aaab") == "aab");
  CHECK(first_match("(?:ab){1}{2}", "ababab") == "abab");
  CHECK(first_match("a++a", "aaa") == "none");
  CHECK(first_match("a{x}", "a{x}") == "a{x}");
}

TEST_CASE("brackets nest and intersect") {
  CHECK(first_match("[\\p{Lo}&&[^\\p{Han}]]+", "\u4e00\u30a2\u3042") == "\u30a2\u3042");
  CHECK(first_match("[a-z&&[^b]&&[^c]]+", "bcade") == "ade");
  CHECK(first_match("[[a-c][x-z]]+", "dbxy1") == "bxy");
  CHECK(first_match("[^[^ab]]+", "cab") == "ab");
  CHECK(first_match("[^a&&b]", "a") == "a");
  CHECK(first_match("[a&&b]?c", "abc") == "c");
  CHECK(first_match("(?i)[b-c&&[^c]]+", "aBbC") == "Bb");
  CHECK(first_match("[[:alpha:][:^ascii:]]+", "1a\u00bd2") == "a\u00bd");
}

TEST_CASE("options end with the group that holds them") {
  CHECK(first_match("a(?i)b|c", "aC") == "aC");
  CHECK(first_match("(?:(?i)a)b", "AB") == "none");
  CHECK(first_match("(?m:a.b)", "a\nb") == "a\nb");
}

TEST_CASE("classes hold the characters of our tables") {
  // Unicode 16 added the first, and Oniguruma takes the second for a word character.
  CHECK(first_match("\\p{Lu}", "\u1c89") == "\u1c89");
  CHECK(first_match("\\w+", "-\u00bd") == "\u00bd");
  CHECK(first_match("[[:word:]]+", "\u00bda") == "a");
  for (const std::string_view property : {"L", "N", "P", "S", "M", "Lu", "Han", "Latin", "Cn", "White_Space", "Nd"}) {
    const CodePointSet wanted = *property_set(property);
    for (const std::string& pattern : {"\\p{" + std::string(property) + "}", "[^\\P{" + std::string(property) + "}]"}) {
      const Regex regex = Regex::compile(pattern);
      RegexScratch scratch;
      char32_t first_wrong = 0;
      for (char32_t c = 1; c < 0x110000 && first_wrong == 0; c += c == 0xD7FF ? 0x801 : 1) {
        std::string text;
        millrace::append_utf8(text, c);
        if (regex.find(text, 0, scratch).has_value() != wanted.contains(c)) first_wrong = c;
      }
      CAPTURE(pattern);
      CHECK(static_cast<uint32_t>(first_wrong) == 0);
    }
  }
}
