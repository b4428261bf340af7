#pragma once

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "grammar/grammar_fixtures.h"

namespace millrace::test {

/// A JSON schema, and texts that are and are not its instances.
struct SchemaTexts {
  const char* schema;
  std::vector<std::string> good;
  std::vector<std::string> bad;
};

inline void check(const std::vector<SchemaTexts>& cases) {
  for (const SchemaTexts& item : cases) {
    INFO(item.schema);
    const auto grammar = grammar_from_schema(item.schema);
    REQUIRE(message_of(grammar) == "no error");
    for (const std::string& text : item.good) {
      INFO(text);
      CHECK(matches(*grammar, text));
    }
    for (const std::string& text : item.bad) {
      INFO(text);
      CHECK(!matches(*grammar, text));
    }
  }
}

}  // namespace millrace::test
