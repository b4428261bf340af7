#include <catch2/catch.hpp>
#include <regex>

#include "grammar/grammar_fixtures.h"
#include "grammar/schema_draws.h"
#include "grammar/schema_oracle.h"
#include "support/test_seed.h"

using namespace millrace;
using namespace millrace::test;

namespace {

struct Tally {
  size_t schemas = 0;
  size_t accepted = 0;
  size_t valid = 0;
  size_t missed = 0;
};

/// Compares what drawn schemas accept with the oracle. No invalid value may be accepted.
Tally compare(bool excludes, int trials) {
  SchemaDraws draws(test_seed() + (excludes ? 1 : 0));
  Tally tally;
  for (int trial = 0; trial < trials; ++trial) {
    const std::string text = draws.schema(2, excludes);
    const auto grammar = grammar_from_schema(text);
    const std::string message = message_of(grammar);
    const bool is_empty = message == "no text matches it" || message == "schema: no value satisfies it";
    if (grammar.has_error() && !is_empty) continue;
    ++tally.schemas;
    const auto schema = JsonDocument::parse(text).value();
    const SchemaOracle oracle(schema.root());
    for (int i = 0; i < 60; ++i) {
      const std::string value_text = draws.value(2);
      const auto value = JsonDocument::parse(value_text).value();
      const bool is_valid = oracle.is_valid(value.root(), schema.root());
      const bool is_accepted = !is_empty && matches(*grammar, value_text);
      INFO(text << "\n" << value_text);
      REQUIRE((is_valid || !is_accepted));
      tally.accepted += is_accepted ? 1 : 0;
      tally.valid += is_valid ? 1 : 0;
      if (!excludes) REQUIRE(is_accepted == is_valid);
      tally.missed += is_valid && !is_accepted ? 1 : 0;
    }
  }
  return tally;
}

}  // namespace

TEST_CASE("drawn schemas accept what is valid and nothing else") {
  INFO("seed " << test_seed());
  const Tally tally = compare(false, 1500);
  CHECK(tally.schemas > 700);
  CHECK(tally.accepted > 1000);
}

TEST_CASE("drawn schemas that exclude others accept nothing invalid") {
  INFO("seed " << test_seed());
  const Tally tally = compare(true, 1500);
  CHECK(tally.schemas > 500);
  CHECK(tally.accepted > 1000);
  // Few ways to violate a schema are left out.
  CHECK(tally.missed * 50 < tally.valid);
}

TEST_CASE("what drawn schemas write is valid") {
  INFO("seed " << test_seed());
  SchemaDraws draws(test_seed() + 2);
  std::mt19937_64 random(test_seed());
  size_t whole = 0;
  for (int trial = 0; trial < 300; ++trial) {
    const std::string text = draws.schema(2, true);
    const auto grammar = grammar_from_schema(text);
    if (grammar.has_error()) continue;
    const auto schema = JsonDocument::parse(text).value();
    const SchemaOracle oracle(schema.root());
    for (int i = 0; i < 3; ++i) {
      const RandomText written = random_text(*grammar, random, 200);
      // The oracle counts in doubles.
      if (!written.is_whole || std::regex_search(written.text, std::regex("[0-9]{9}"))) continue;
      INFO(text << "\n" << written.text);
      const auto value = JsonDocument::parse(written.text).value();
      REQUIRE(oracle.is_valid(value.root(), schema.root()));
      ++whole;
    }
  }
  CHECK(whole > 100);
}
