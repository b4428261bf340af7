#include "grammar/lark.h"

#include <catch2/catch.hpp>

#include "grammar/grammar_fixtures.h"

using namespace millrace;
using namespace millrace::test;

namespace {

GrammarPtr read(std::string_view text) {
  const auto grammar = grammar_from_lark(text);
  REQUIRE(message_of(grammar) == "no error");
  return *grammar;
}

}  // namespace

TEST_CASE("a grammar of Lark matches its start") {
  const GrammarPtr sums = read(R"LARK(// sums
?start: sum -> whole
sum.2: term (("+" | "-") term)*   # left to right
!term: factor
     | factor "*" term
factor: NUMBER | "(" sum ")" | [sign] "x"~2..3
sign: "neg"i
%import common.NUMBER
)LARK");
  for (const char* text : {"1", "1+2*3", "(1-2)*4.25", "xx", "NeGxxx", "2e9"}) CHECK(matches(sums, text));
  for (const char* text : {"", "1+", "(1", "x", "xxxx", "1 + 2"}) CHECK_FALSE(matches(sums, text));

  const GrammarPtr tokens = read(R"LARK(start: NAME "=" VALUE _end
NAME: LETTER (LETTER | "0".."9")*
VALUE: /[^;"\/]+/ | /"(\\.|[^"])*"/i
_end: ";" | "\n"
%import common (LETTER))LARK");
  for (const char* text : {"a1=b c;", "B=\"q;\\\"\";", "z=x\n"}) CHECK(matches(tokens, text));
  for (const char* text : {"1a=b;", "a=;", "a=b/;", "a=b"}) CHECK_FALSE(matches(tokens, text));
}

TEST_CASE("characters beyond ASCII have one case in Lark") {
  const GrammarPtr words = read("start: \"aé€b\"i \"ü\"i");
  for (const char* text : {"aé€bü", "Aé€Bü"}) CHECK(matches(words, text));
  for (const char* text : {"AÉ€Bü", "aé€b"}) CHECK_FALSE(matches(words, text));
}

TEST_CASE("the dots of a range of Lark may stand between blanks") {
  const GrammarPtr letters = read("start: \"a\" .. \"c\" \"x\"\t..\"z\" \"i\"");
  CHECK(matches(letters, "bzi"));
  CHECK_FALSE(matches(letters, "dzi"));
}

TEST_CASE("the count of a part of Lark may stand after space") {
  const GrammarPtr counted = read("start: \"a\"\t~ 2 (\"b\" ~1..2) // two\n  | \"c\"");
  for (const char* text : {"aab", "aabb", "c"}) CHECK(matches(counted, text));
  for (const char* text : {"ab", "aac"}) CHECK_FALSE(matches(counted, text));
}

TEST_CASE("a rule of Lark begins on the line of its name") {
  const GrammarPtr either = read("start:\n  | \"a\"");
  CHECK(matches(either, ""));
  CHECK(matches(either, "a"));
  CHECK(message_of(grammar_from_lark("start:\n  \"a\"")).starts_with("wanted the name of a rule"));
}

TEST_CASE("what Lark ignores may stand around tokens") {
  const GrammarPtr list = read(R"(start: "[" ITEM ("," ITEM)* "]"
ITEM: "a" "b"
%import common.WS -> SPACE
%ignore SPACE
%ignore /#[^\n]*/)");
  for (const char* text : {"[ab]", " [ ab ,\tab ] ", "[ab#c]\n]"}) CHECK(matches(list, text));
  for (const char* text : {"[a b]", "[ab ab]", "[]"}) CHECK_FALSE(matches(list, text));
}

TEST_CASE("the patch grammar of Codex matches patches") {
  const GrammarPtr patch = read(kPatchLark);
  CHECK(matches(patch, "*** Begin Patch\n*** Add File: a.py\n+print(\"x\")\n+\n*** End Patch"));
  CHECK(matches(patch, "*** Begin Patch\n*** Update File: a\n@@ f\n-x\n+y\n z\n*** End Patch\n"));
  CHECK_FALSE(matches(patch, "*** Begin Patch\n*** End Patch"));
  CHECK_FALSE(matches(patch, "*** Begin Patch\n*** Add File: a\nx\n*** End Patch"));
}

TEST_CASE("errors of a Lark grammar name the place or the rule") {
  const std::pair<const char*, const char*> cases[] = {
      {"", "nothing defines 'start'"},
      {"start: other", "nothing defines 'other'"},
      {"start: \"a\"\nstart: \"b\"", "'start' is defined twice"},
      {"start = \"a\"", "wanted ':' after 'start'"},
      {"start: \"a", "a literal has no end"},
      {"start: /a", "a regular expression has no end"},
      {"start: /a(?=b)/", "looking ahead is not supported"},
      {"start: /a/x", "the flag 'x' of a regular expression is not supported"},
      {"start: (\"a\"", "wanted ')'"},
      {"start: [\"a\"", "wanted ']'"},
      {"start: \"a\")", "wanted the end of the line"},
      {"start: \"a\"~3..2", "wanted a larger count after '..'"},
      {"start: \"ab\"..\"c\"", "a range wants two characters in order"},
      {"start: many{\"a\"}", "templates of rules are not supported"},
      {"%declare A", "the directive %declare is not supported"},
      {"%import python.NAME", "only terminals of common can be imported"},
      {"%import common.NAME", "common has no terminal 'NAME'"},
      {"start: start \"a\" | \"b\"",
       "start refers to itself before it has any text (left recursion); write a repetition, as in term (\"+\" term)*"},
      {"start: /^a/", "a part of a grammar cannot have the assertions"},
      {"start: /a$/", "a part of a grammar cannot have the assertions"},
      {"start: /a/ /\\bb/", "a part of a grammar cannot have the assertions"},
      {"start: /a\\Bb/", "a part of a grammar cannot have the assertions"},
      {"start: A\nA: /\\Aa|b/", "a part of a grammar cannot have the assertions"},
      {"start: /a\\z/", "a part of a grammar cannot have the assertions"},
      {"start: /a|b\\Z/i", "a part of a grammar cannot have the assertions"},
      {"start: \"\\[\"", "this escape is not supported"},
      {"start: \"a\" ->", "wanted a name after '->'"},
      {"start: A\n%import common.WS ->", "wanted a name after '->'"},
      {"start.: \"a\"", "wanted a priority after '.'"},
      {"start.-: \"a\"", "wanted a priority after '.'"},
      {"start: A\nA: b\nb: \"b\"", "a terminal refers to the rule 'b', wanted terminals alone"},
      {"start: \"a\"\nb: \"b\"\n%ignore b", "a terminal refers to the rule 'b', wanted terminals alone"},
  };
  for (const auto& [text, message] : cases) {
    INFO(text);
    CHECK(message_of(grammar_from_lark(text)).starts_with(message));
  }
  const std::string name(1000, 'n');
  for (const std::string& text : {"start: " + name, "start: \"a\"\n" + name + " \"b\"", "%import common." + name,
                                  "start: \"a\"\n" + name + ": \"b\"\n" + name + ": \"c\""}) {
    CHECK_THAT(message_of(grammar_from_lark(text)),
               Catch::Contains(std::string(64, 'n')) && !Catch::Contains(std::string(65, 'n')));
  }
}
