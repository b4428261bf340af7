#include "text/tokenizer/pretoken_scanner.h"

#include <catch2/catch.hpp>
#include <random>

#include "base/utf8.h"
#include "text/json_support.h"
#include "support/paths.h"
#include "support/skip.h"
#include "text/tokenizer/regex.h"

using namespace millrace;
using namespace millrace::text;

namespace {

constexpr std::string_view kPatterns[] = {kLlama3Pattern, kQwen2Pattern, kGpt2Pattern,
                                          kTekkenPattern, kGpt4oPattern, kKimiPattern};

/// Fails at the first piece where the scanner and the regex of one of kPatterns differ.
void compare(size_t pattern, std::string_view text) {
  static const std::vector<Regex> kRegexes = [] {
    std::vector<Regex> regexes;
    for (const std::string_view each : kPatterns) regexes.push_back(Regex::compile(each));
    return regexes;
  }();
  const auto scanner = PretokenScanner::for_pattern(kPatterns[pattern]);
  REQUIRE(scanner);
  const Regex& regex = kRegexes[pattern];
  RegexScratch scratch;
  for (size_t at = 0; at < text.size();) {
    const auto match = regex.find(text, at, scratch);
    const size_t end = scanner->next(text, at);
    if (!match || match->begin != at || match->end != end) {
      FAIL("at byte " << at << " of \"" << text.substr(at > 20 ? at - 20 : 0, 60) << "\": the scanner ends at " << end
                      << ", the regex at " << (match ? match->end : 0));
    }
    at = end;
  }
}

}  // namespace

TEST_CASE("the scanner cuts random text as the regex does") {
  std::mt19937 random(5);
  const std::vector<std::string> pieces = {"'",
                                           "s",
                                           "S",
                                           "t",
                                           "ll",
                                           "LL",
                                           "re",
                                           "Ve",
                                           "m",
                                           "d",
                                           " ",
                                           "  ",
                                           "\t",
                                           "\n",
                                           "\r",
                                           "\v",
                                           "a",
                                           "Z",
                                           "0",
                                           "12345",
                                           ".",
                                           "!?",
                                           "_",
                                           "\xC2\xA0",
                                           "\xC2\x85",
                                           "\xE1\xA0\x8E",
                                           "\xE2\x80\xA8",
                                           "\xE3\x80\x80",
                                           "\xC5\xBF",
                                           "\xE2\x84\xAA",
                                           "\xC3\xA9",
                                           "\xCC\x81",
                                           "\xC2\xBD",
                                           "\xE2\x85\xA7",
                                           "\xE6\x97\xA5",
                                           "/",
                                           "Az",
                                           "\xC7\x85",
                                           "\xCA\xB0",
                                           "\xD7\x90",
                                           "\xE3\x80\x87",
                                           "\xE3\x80\x85",
                                           "\xE2\xBA\x80",
                                           "\xF0\x96\xBF\xB0",
                                           "\xF0\x9F\xA6\x99",
                                           "\xF0\x9D\x9F\x98",
                                           std::string(1, '\0')};
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    const size_t count = random() % 12;
    for (size_t i = 0; i < count; ++i) {
      if (random() % 8 != 0) {
        text += pieces[random() % pieces.size()];
        continue;
      }
      const char32_t c = random() % 0x110000;
      if (c < 0xD800 || c > 0xDFFF) append_utf8(text, c);
    }
    for (size_t pattern = 0; pattern < std::size(kPatterns); ++pattern) compare(pattern, text);
  }
}

TEST_CASE("both spellings of the pattern of Kimi have a scanner") {
  const std::string bare = "\\p{Han}+" + std::string(kKimiPattern.substr(std::string_view("[\\p{Han}]+").size()));
  CHECK(PretokenScanner::for_pattern(bare));
  CHECK_FALSE(PretokenScanner::for_pattern(bare + "?"));
  CHECK_FALSE(PretokenScanner::for_pattern(bare.substr(1)));
}

TEST_CASE("the scanner classes every code point as the regex does") {
  std::string text;
  for (char32_t c = 1; c < 0x110000; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    text += "a ";
    append_utf8(text, c);
  }
  for (size_t pattern = 0; pattern < std::size(kPatterns); ++pattern) compare(pattern, text);
}

TEST_CASE("the scanner cuts the corpus as the regex does") {
  const auto corpus = test::shared_data_dir() / "corpus";
  if (!std::filesystem::exists(corpus)) SKIP_TEST("the shared data folder is absent");
  for (const auto& book : std::filesystem::directory_iterator(corpus)) {
    const std::string text = test::read_file(book.path());
    for (size_t pattern = 0; pattern < std::size(kPatterns); ++pattern) compare(pattern, text);
  }
}
