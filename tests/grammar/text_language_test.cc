#include "grammar/text_language.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "grammar/decimal.h"
#include "grammar/number_language.h"
#include "grammar/regex_parser.h"
#include "support/test_seed.h"

using namespace millrace;
using namespace millrace::grammar;
using millrace::test::test_seed;

namespace {

ReadWork work;

TextLanguage language_of(std::string_view pattern) {
  return TextLanguage::of_expression(*parse_search_pattern(pattern).value().expression, work);
}

std::string drawn_text(std::mt19937_64& random) {
  std::string text;
  const auto length = random() % 6;
  for (uint64_t i = 0; i < length; ++i) text += std::string_view("ab1")[random() % 3];
  return text;
}

}  // namespace

TEST_CASE("languages combine as sets of texts do") {
  INFO("seed " << test_seed());
  std::mt19937_64 random(test_seed());
  const char* patterns[] = {"a", "^a", "b$", "^(ab)*$", "^a{2,3}b?", "1|^b", "(^a|b$)1?", "^[^a]*$", "^$|aa"};
  for (const char* left : patterns) {
    for (const char* right : patterns) {
      const TextLanguage ours = language_of(left);
      const TextLanguage theirs = language_of(right);
      const TextLanguage both = ours.and_also(theirs, work);
      const TextLanguage either = ours.or_else(theirs, work);
      const TextLanguage neither = either.complement(work);
      INFO(left << " and " << right);
      for (int i = 0; i < 40; ++i) {
        const std::string text = drawn_text(random);
        INFO(text);
        REQUIRE(both.accepts(text) == (ours.accepts(text) && theirs.accepts(text)));
        REQUIRE(either.accepts(text) == (ours.accepts(text) || theirs.accepts(text)));
        REQUIRE(neither.accepts(text) == !either.accepts(text));
      }
      REQUIRE(both.and_also(neither, work).is_empty());
    }
  }
}

TEST_CASE("languages know lengths and single texts") {
  const TextLanguage two = TextLanguage::of_lengths(2, 2);
  CHECK(two.accepts("\xC3\xA9\xF0\x9F\x98\x80"));
  CHECK(!two.accepts("abc"));
  CHECK(TextLanguage::of_lengths(1, {}).accepts("abcdef"));
  CHECK(!TextLanguage::of_lengths(1, {}).accepts(""));
  const TextLanguage names = TextLanguage::exactly({"ab", "abc", ""}, work);
  CHECK((names.accepts("") && names.accepts("ab") && names.accepts("abc")));
  CHECK((!names.accepts("a") && !names.accepts("abcd")));
  CHECK(names.complement(work).accepts("a"));
  CHECK(TextLanguage::any().complement(work).is_empty());
  CHECK_THROWS(TextLanguage::of_lengths(0, 1'000'000));
}

TEST_CASE("anchors match at the ends of a text wherever they stand") {
  const TextLanguage either = language_of("(^ab$)|(^cd$)");
  CHECK((either.accepts("ab") && either.accepts("cd")));
  CHECK((!either.accepts("xab") && !either.accepts("cdx")));
  const TextLanguage one = language_of("x(y|$)");
  CHECK((one.accepts("zx") && one.accepts("xyz") && !one.accepts("xz")));
  CHECK(language_of("a$b").is_empty());
  CHECK(language_of("^$").accepts(""));
}

TEST_CASE("numbers satisfy their conditions digit by digit") {
  INFO("seed " << test_seed());
  std::mt19937_64 random(test_seed());
  const char* bounds[] = {"-10.25", "-3", "-0.5", "0", "0.05", "1.5", "7", "12.125", "100"};
  const char* divisors[] = {"2", "0.5", "0.25", "7", "30", "1.5"};
  for (int trial = 0; trial < 150; ++trial) {
    NumberConditions conditions;
    if (random() % 3 != 0) conditions.low = parse_decimal(bounds[random() % std::size(bounds)]);
    if (random() % 3 != 0) conditions.high = parse_decimal(bounds[random() % std::size(bounds)]);
    conditions.excludes_low = random() % 2 == 0;
    conditions.excludes_high = random() % 2 == 0;
    conditions.allows_fraction = random() % 2 == 0;
    conditions.allows_whole = !conditions.allows_fraction || random() % 2 == 0;
    if (random() % 2 == 0) {
      const bool is_negated = random() % 4 == 0;
      conditions.multiples.push_back({*parse_decimal(divisors[random() % std::size(divisors)]), is_negated});
    }
    if (random() % 3 == 0) conditions.excluded.push_back(*parse_decimal("1.5"));
    const TextLanguage language = number_language(conditions, work);
    for (int i = 0; i < 120; ++i) {
      const auto eighths = static_cast<int64_t>(random() % 1800) - 900;
      if (eighths == 0) continue;
      std::string text = fmt::format("{}", static_cast<double>(eighths) / 8);
      const Decimal number = *parse_decimal(text);
      if (number.fraction.empty() && text.ends_with(".0")) text.resize(text.size() - 2);
      bool is_met = number.fraction.empty() ? conditions.allows_whole : conditions.allows_fraction;
      if (conditions.low)
        is_met = is_met && (conditions.excludes_low ? number > *conditions.low : number >= *conditions.low);
      if (conditions.high) {
        is_met = is_met && (conditions.excludes_high ? number < *conditions.high : number <= *conditions.high);
      }
      for (const auto& multiple : conditions.multiples) {
        const double divisor = std::stod(multiple.divisor.whole + "." + multiple.divisor.fraction + "0");
        const double quotient = static_cast<double>(eighths) / 8 / divisor;
        is_met = is_met && (std::abs(quotient - std::round(quotient)) < 1e-9) != multiple.is_negated;
      }
      for (const Decimal& excluded : conditions.excluded) is_met = is_met && number != excluded;
      INFO(text);
      REQUIRE(language.accepts(text) == is_met);
    }
  }
}

TEST_CASE("decimals are exact and ordered") {
  const auto decimal = [](std::string_view text) { return parse_decimal(text).value(); };
  CHECK(decimal("1.50e1") == decimal("15"));
  CHECK(decimal("-0") == decimal("0.000"));
  CHECK(decimal("1e-3") == decimal("0.001"));
  CHECK(decimal("-2") < decimal("-1.5"));
  CHECK(decimal("-1.5") < decimal("0"));
  CHECK(decimal("9.99") < decimal("10"));
  CHECK(decimal("18446744073709551617") > decimal("18446744073709551616"));
  CHECK(!parse_decimal("1e400").has_value());
  CHECK(is_multiple_of(decimal("0.3"), decimal("0.1")));
  CHECK(!is_multiple_of(decimal("0.35"), decimal("0.1")));
}
