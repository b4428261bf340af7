#include "text/tokenizer/regex.h"

#include <catch2/catch.hpp>
#include <string>

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
