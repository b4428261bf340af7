#include "grammar/ebnf.h"

#include <catch2/catch.hpp>

#include "grammar/grammar_fixtures.h"

using namespace millrace;
using namespace millrace::test;

TEST_CASE("a grammar in EBNF matches its root") {
  const auto arithmetic = grammar_from_ebnf(R"EBNF(# sums
root  ::= expr "\n"?
expr  ::= term ([-+] term)*   # left to right
term  ::= factor (
            "*" factor |
            "/" factor
          )*
factor ::= number
         | "(" expr ")"
number ::= [0-9]+ ("." [0-9]{1,2})?
)EBNF");
  REQUIRE(message_of(arithmetic) == "no error");
  for (const char* text : {"1", "1+2*3", "(1-2)/4.25", "((7))\n"}) CHECK(matches(*arithmetic, text));
  for (const char* text : {"", "1+", "(1", "1.234", "1 + 2", "a"}) CHECK(!matches(*arithmetic, text));

  const auto classes = grammar_from_ebnf(R"(root ::= [^"\\\n] . "\"" "\x41" [\]a-c] "\u00e9")");
  REQUIRE(message_of(classes) == "no error");
  CHECK(matches(*classes, "x\n\"A]\xC3\xA9"));
  CHECK(!matches(*classes, "\"\n\"A]\xC3\xA9"));

  const auto counts = grammar_from_ebnf("a-b ::= \"x\"{2}\nroot ::= a-b{1,2} \"y\"{2,}");
  REQUIRE(message_of(counts) == "no error");
  CHECK(matches(*counts, "xxyy"));
  CHECK(matches(*counts, "xxxxyyy"));
  CHECK(!matches(*counts, "xxxyy"));
  CHECK(!matches(*counts, "xxy"));
}

TEST_CASE("errors of a grammar name the place or the rule") {
  const std::pair<const char*, const char*> cases[] = {
      {"", "nothing defines 'root'"},
      {"start ::= \"a\"", "nothing defines 'root'"},
      {"root ::= other", "nothing defines 'other'"},
      {"root ::= \"a\"\nroot ::= \"b\"", "'root' is defined twice"},
      {"root = \"a\"", "wanted '::=' after 'root'"},
      {"root ::= \"a", "a literal has no end"},
      {"root ::= [a", "a class has no end"},
      {"root ::= (\"a\"", "wanted ')'"},
      {"root ::= \"a\")", "wanted the end of the line"},
      {"root ::= \"\\q\"", "this escape is not supported"},
      {"root ::= \"\\f\"", "this escape is not supported"},
      {"root ::= \"a\"]", "wanted the end of the line"},
      {"root ::= \"a\" -> b", "wanted the end of the line"},
      {"root ::= *", "wanted a literal, a class, a group or a rule"},
      {"root ::= \"a\"{2,1}", "the counts are the wrong way round"},
      {"::= \"a\"", "wanted the name of a rule"},
  };
  for (const auto& [text, message] : cases) {
    INFO(text);
    CHECK(message_of(grammar_from_ebnf(text)).starts_with(message));
  }
}
