#include "grammar/json_schema.h"

#include <simdjson.h>

#include <catch2/catch.hpp>
#include <chrono>

#include "grammar/schema_cases.h"
#include "server/schema_check.h"
#include "support/test_seed.h"

using namespace millrace;
using namespace millrace::test;

TEST_CASE("scalars") {
  check({
      {R"({"type":"string"})",
       {R"("")", R"("a b")", R"("\"\\\/\b\n\u00e9\ud83d\ude00")", "\"\xC3\xA9\xF0\x9F\x98\x80\""},
       {"", "a", "\"", "\"a\nb\"", R"("\x")", R"("\ud83d")", R"("\ude00")", "\"\xC3\"", R"("a" )"}},
      {R"({"type":"string","minLength":2,"maxLength":3})",
       {R"("ab")", R"("a\u0041c")", "\"\xC3\xA9\xC3\xA9\xC3\xA9\""},
       {R"("a")", R"("abcd")"}},
      {R"({"type":"integer"})", {"0", "-5", "123456789012345678"}, {"01", "1.0", "1e5", "-", "1234567890123456789"}},
      {R"({"type":"number"})", {"0", "-0.5", "1e5", "1.25E-3"}, {"01", ".5", "1.", "1e", "+1", "NaN"}},
      {R"({"type":"boolean"})", {"true", "false"}, {"True", "1", ""}},
      {R"({"type":"null"})", {"null"}, {"", "nil"}},
      {R"({"type":["string","null"]})", {R"("a")", "null"}, {"1"}},
      {R"({"type":"string","nullable":true})", {R"("a")", "null"}, {"1"}},
      {R"({"enum":["a b",1,null,true,{"x":[1,"\""]}]})", {R"("a b")", "1", "null", "true", R"({"x":[1,"\""]})"}, {"2"}},
      {R"({"const":"caf\u00e9"})", {"\"caf\xC3\xA9\""}, {R"("cafe")"}},
      {R"({"anyOf":[{"type":"integer"},{"enum":["x"]}]})", {"1", R"("x")"}, {R"("y")"}},
      {R"({"oneOf":[{"type":"integer"},{"type":"null"}],"title":"t","description":"d","default":1})",
       {"1", "null"},
       {}},
      {R"({"allOf":[{"type":"integer"}]})", {"1"}, {"null"}},
      {R"({"type":"string","format":"date"})", {R"("2024-02-29")"}, {R"("2024-13-01")", R"("24-01-01")"}},
      {R"({"type":"string","format":"date-time"})",
       {R"("2024-02-29T12:00:00Z")", R"("2024-02-29T12:00:00.5+01:00")"},
       {R"("2024-02-29 12:00:00Z")"}},
      {R"({"type":"string","format":"uuid"})", {R"("123e4567-e89b-12d3-a456-426614174000")"}, {R"("123")"}},
      {R"({"type":"string","format":"ipv4"})", {R"("127.0.0.1")"}, {R"("256.0.0.1")", R"("1.2.3")"}},
      {R"({"type":"string","format":"email"})", {R"("a.b@c-d.org")"}, {R"("a@b")", R"("@b.c")"}},
      {R"({"format":"hostname"})",
       {R"("a-b.example")", R"("localhost")", R"("a--b.x1-y--z")"},
       {R"("-a.b")", R"("a..b")", R"("a_b")", R"("xn--x")", R"("a.bc--d")"}},
      {R"({"format":"ipv6"})",
       {R"("::")", R"("1::8")", R"("fe80::1:2")", R"("1:2:3:4:5:6:7:8")", R"("::ffff:1.2.3.4")"},
       {R"("1:2")", R"("1::2::3")", R"("12345::")", R"("1:2:3:4:5:6:7:8:9")"}},
      {R"({"format":"uri"})",
       {R"("https://a.b/c?d=e#f")", R"("urn:a:b")", R"("mailto:a@b.c")"},
       {R"("a.b/c")", R"("http://a b")", R"("://x")", R"("http://x/%zz")"}},
      {R"({"format":"uri-reference"})", {R"("/a/b")", R"("#x")", R"("")", R"("http://x")"}, {R"("a b")", R"("\\")"}},
      {R"({"format":"uri-template"})",
       {R"("http://a/{b}")", R"("/x{?q,page*}{#f:3}")", R"("plain")", R"("")"},
       {R"("http://a/{")", R"("}")", R"("{}")", R"("{a,}")", R"("{a b}")", R"("%z")"}},
      {R"({"format":"idn-hostname"})",
       {"\"\xEC\x8B\xA4\xEB\xA1\x80.\xED\x85\x8C\"", R"("a-b.example")", "\"caf\xC3\xA9.fr\""},
       {R"("-a")", R"("a..b")", R"("a--b")", "\"\xE3\x80\xAE\"", R"("")"}},
      {R"({"format":"idn-email"})",
       {"\"\xEC\x8B\xA4@\xEC\x8B\xA4.kr\"", R"("a.B@c.org")"},
       {R"("2962")", R"("a@")", R"("a b@c.d")"}},
      {R"({"format":"duration"})", {R"("P1Y2M3DT4H")", R"("PT5S")", R"("P2W")"}, {R"("P")", R"("1D")", R"("P1S")"}},
      {R"({"format":"json-pointer"})", {R"("/a~1b/0")", R"("")"}, {R"("a")", R"("/~2")"}},
      {R"({"format":"regex"})",
       {R"("^[a-z0-9_-]{3,16}$")", R"x("(a|b)+\\d?")x", R"("")"},
       {R"("[")", R"("(")", R"("*a")", R"("a{3,1}")", R"("\\")"}},
      {R"({"type":"string","format":"something"})", {R"("x")"}, {"1"}},
      {"true", {"1", R"({"a":[]})"}, {"", "x"}},
  });
}

TEST_CASE("a pattern is searched in the string with JSON escapes") {
  check({
      {R"({"type":"string","pattern":"^a+$"})", {R"("aa")"}, {R"("ba")", R"("")"}},
      {R"({"type":"string","pattern":"a"})", {R"("xay")", R"("a")", R"("\na")"}, {R"("xy")"}},
      {R"({"pattern":"^ab|yz$"})", {R"("abc")", R"("xyz")"}, {R"("xab")", R"("yzx")"}},
      {R"({"type":"string","pattern":"^[\"\\\\\n]+$"})", {R"("\"\\\n")"}, {R"("a")", "\"\"\"", R"("\t")"}},
      {R"({"type":"string","pattern":"^[^a]$"})", {R"("\"")", R"("b")", R"("\u0001")"}, {R"("a")", "\"\n\""}},
      {R"({"type":"string","pattern":"^\\d{2}-\\w$"})", {R"("12-a")"}, {R"("1-a")"}},
      {R"({"type":"string","pattern":"^\\p{L}[\\p{L}\\p{N} .'-]*$"})",
       {"\"\xC3\x89lan d'Or-2\"", R"("a")"},
       {R"("")", R"("1a")", R"("a_")"}},
      {R"({"type":"string","pattern":"^\\P{Cc}{1,3}$","maxLength":2})", {R"("ab")"}, {R"("abc")", R"("")", R"("\n")"}},
      {R"({"type":"string","pattern":"\\bcat\\b"})", {R"("cat")", R"("a cat.")"}, {R"("concat")", R"("cats")"}},
      {R"({"type":"string","pattern":"^(?!.*\\bno\\b)[a-z ]+$"})", {R"("not now")"}, {R"("say no more")"}},
  });
}

TEST_CASE("objects have their members in any order") {
  check({
      {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"required":["a"]})",
       {R"({"a":1})", R"({"b":2,"a":1})", R"({"a":1,"c":2})", R"({"a": 1, "b": 2})", "{\n  \"a\": 1,\n  \"b\": 2\n}",
        R"({ "a":1 })"},
       {"{}", R"({"b":2})", R"({"a":1,"a":2})", R"({"a":"x"})", R"({"a":1,})", R"({"a" :1})", R"({"a":1}  )"}},
      {R"({"type":"object","properties":{"a":{},"b":{},"c":{}}})",
       {"{}", R"({"b":1})", R"({"c":1,"a":2})", R"({"a":1,"c":[{}]})", R"({"a":1,"b":2,"c":3})"},
       {R"({,"b":1})", R"({"a":1,,"c":2})"}},
      {R"({"type":"object"})", {"{}", R"({"x":{"y":[1,"a"]}})"}, {"[]"}},
      {R"({"type":"object","additionalProperties":{"type":"integer"}})", {"{}", R"({"x":1,"y":2})"}, {R"({"x":"a"})"}},
      {R"({"properties":{"ab":{"type":"null"}},"additionalProperties":{"type":"integer"}})",
       {R"({"ab":null,"a":1,"abc":2,"":3,"x":4})", R"({"b":1})", "{}", R"({"x":1,"ab":null})"},
       {R"({"ab":1})", R"({"x":1,"ab":2})", R"({"x":null})"}},
      {R"({"type":"object","properties":{"a":{}},"additionalProperties":false})", {R"({"a":1})"}, {R"({"b":1})"}},
      {R"({"type":"object","required":["x"],"additionalProperties":{"type":"integer"}})",
       {R"({"x":1})", R"({"x":1,"y":2})"},
       {"{}", R"({"y":2})"}},
      {R"({"type":"object","properties":{"a\"b\n":{"type":"null"}},"required":["a\"b\n"]})",
       {R"({"a\"b\n":null})"},
       {}},
      {R"({"type":"object","properties":{"next":{"anyOf":[{"$ref":"#"},{"type":"null"}]}},"required":["next"]})",
       {R"({"next":null})", R"({"next":{"next":{"next":null}}})"},
       {R"({"next":{}})"}},
      {R"({"$ref":"#/$defs/a b~1","$defs":{"a b/":{"type":"integer"}}})", {"1"}, {"null"}},
      {R"({"type":"object","properties":{"a":{"$ref":"#/definitions/p","description":"d"}},
          "definitions":{"p":{"type":"object","properties":{"x":{"type":"integer"}},"required":["x"]}}})",
       {R"({"a":{"x":1}})", "{}"},
       {R"({"a":{}})"}},
  });
}

TEST_CASE("arrays") {
  check({
      {R"({"type":"array"})", {"[]", "[1, {}]", "[ ]", "[\n  1,\n  2\n]"}, {"[1,]", "[,1]", "{}"}},
      {R"({"type":"array","items":{"type":"integer"}})", {"[]", "[1]", "[1,2,3]"}, {R"(["a"])"}},
      {R"({"items":{"type":"integer"},"minItems":2,"maxItems":3})", {"[1,2]", "[1,2,3]"}, {"[]", "[1]", "[1,2,3,4]"}},
      {R"({"type":"array","items":{"type":"integer"},"maxItems":0})", {"[]"}, {"[1]"}},
      {R"({"type":"array","items":{"type":"integer"},"minItems":1})", {"[1]", "[1,2]"}, {"[]"}},
      {R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"null"}],"items":false,"minItems":2})",
       {"[1,null]"},
       {"[1]", "[1,null,2]", "[null,1]"}},
      {R"({"prefixItems":[{"type":"integer"},{"type":"null"}],"items":{"type":"boolean"},"minItems":1,"maxItems":4})",
       {"[1]", "[1,null]", "[1,null,true]", "[1,null,true,false]"},
       {"[]", "[1,true]", "[1,null,true,false,true]"}},
      {R"({"items":[{"type":"integer"},{"type":"null"}],"additionalItems":{"type":"boolean"}})",
       {"[]", "[1]", "[1,null,true]"},
       {"[null]", "[1,null,1]"}},
      {R"({"items":[{"type":"integer"}],"additionalItems":false})", {"[]", "[1]"}, {"[1,1]"}},
      {R"({"items":[],"maxItems":1})", {"[]", "[null]"}, {"[1,1]"}},
      {R"({"items":{"type":"integer"},"additionalItems":false})", {"[1,1]"}, {"[null]"}},
      {R"({"prefixItems":[{"type":"integer"},{"type":"null"}]})", {"[]", "[1]", R"([1,null,"x"])"}, {"[null]"}},
  });
}

TEST_CASE("names that constrain nothing are ignored") {
  const char* names[] = {R"("discriminator":{"propertyName":"kind","mapping":{"a":"#/$defs/a"}})",
                         R"("contentEncoding":"base64","contentMediaType":"image/png","contentSchema":{"not":{}})",
                         R"("$anchor":"here","id":"urn:a","$id":"urn:b","$comment":"c","$vocabulary":{"v":true})",
                         R"("markdownDescription":"**d**","x-order":1,"examples":[1],"example":{},"readOnly":true)",
                         R"("deprecated":true,"$dynamicAnchor":"node","$recursiveAnchor":true,"_pattern":"^b$")",
                         R"("then":{"not":{}},"else":false,"minContains":2,"maxContains":0)",
                         R"("not":false,"if":{"const":1},"unevaluatedProperties":true,"unevaluatedItems":{})",
                         R"("propertyNames":{"pattern":"b"},"uniqueItems":true,"multipleOf":3,"minItems":4)",
                         R"("contains":{"const":1},"patternProperties":{"b":false},"maximum":0)"};
  for (const char* name : names) {
    check({{fmt::format(R"({{"type":"string","pattern":"^a$",{}}})", name).c_str(), {R"("a")"}, {R"("b")", "1"}}});
  }
  check({
      {R"({"type":"object","propertyNames":{"type":"string","title":"t"},"minProperties":0,"patternProperties":{},
          "additionalProperties":{"type":"integer"},"dependencies":{"a":[],"b":{}},"dependentRequired":{}})",
       {R"({"a":1})", "{}"},
       {R"({"a":"b"})"}},
      {R"({"type":"object","properties":{"x":{"type":"null"}},"additionalProperties":false,
          "unevaluatedProperties":false})",
       {R"({"x":null})"},
       {R"({"y":1})"}},
      {R"({"type":"array","items":{"type":"integer","multipleOf":1},"uniqueItems":false,"contains":{"const":7},
          "minContains":0})",
       {"[]", "[1,1]"},
       {"[null]"}},
      {R"({"format":"int32"})", {"1", R"("a")", "null"}, {}},
      {R"({"uniqueEver":true,"discriminator":5})", {"1", "[1,1]"}, {}},
  });
}

TEST_CASE("listed values satisfy the keywords beside them") {
  check({
      {R"({"type":"integer","enum":["x",1,2.5,3.0,null]})", {"1", "3.0"}, {R"("x")", "2.5", "null"}},
      {R"({"type":["string","null"],"enum":["x",1,null]})", {R"("x")", "null"}, {"1"}},
      {R"({"type":"string","enum":["x",null],"nullable":true})", {R"("x")", "null"}, {}},
      {R"({"const":"a","enum":["b","a"],"type":"string","title":"t"})", {R"("a")"}, {R"("b")"}},
      {R"({"enum":[1,5,10,"a"],"minimum":2,"exclusiveMaximum":10})", {"5", R"("a")"}, {"1", "10"}},
      {R"({"enum":[2,3],"minimum":2,"exclusiveMinimum":true})", {"3"}, {"2"}},
      {R"({"enum":[18446744073709551616,18446744073709551617],"maximum":18446744073709551616})",
       {"18446744073709551616"},
       {"18446744073709551617"}},
      {R"({"enum":["","\u00e9\u00e9","abc",7],"minLength":1,"maxLength":2})",
       {"\"\xC3\xA9\xC3\xA9\"", "7"},
       {R"("")", R"("abc")"}},
      {R"({"enum":[[],[1],[1,2]],"minItems":1,"maxItems":1})", {"[1]"}, {"[]", "[1,2]"}},
      {R"({"enum":[{"a":1},{"b":1},3],"required":["a"]})", {R"({"a":1})", "3"}, {R"({"b":1})"}},
      {R"({"enum":[1,true],"pattern":"^a$","properties":{"a":{}},"items":{"type":"null"}})", {"1", "true"}, {}},
      {R"({"enum":[{"k":"x","n":1},{"k":"y"},{"n":"z"}],"properties":{"n":{"type":"integer"}},
          "not":{"required":["k","n"]}})",
       {R"({"k":"y"})"},
       {R"({"k":"x","n":1})", R"({"n":"z"})"}},
  });
  const std::pair<const char*, const char*> refused[] = {
      {R"({"type":"integer","enum":["x"]})", "schema: enum: the other keywords allow none of its values"},
      {R"({"type":"string","const":1})", "schema: const: the other keywords allow none of its values"},
      {R"({"const":1,"enum":[2]})", "schema: const: the other keywords allow none of its values"},
      {R"({"enum":[1,2],"minimum":3})", "schema: enum: the other keywords allow none of its values"},
      {R"({"enum":["a"],"pattern":"b"})", "schema: enum: the other keywords allow none of its values"},
      {R"({"enum":[1],"anyOf":[{"type":"string"}]})", "schema: enum: the other keywords allow none of its values"},
  };
  for (const auto& [schema, message] : refused) {
    INFO(schema);
    CHECK(message_of(grammar_from_schema(schema)) == message);
  }
}

TEST_CASE("keywords beside other schemas hold together with them") {
  check({
      {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"null"}},
          "anyOf":[{"required":["a"]},{"required":["b"]}]})",
       {R"({"a":1})", R"({"b":null})", R"({"a":1,"b":null})"},
       {"{}", R"({"a":"x"})", R"({"c":1})"}},
      {R"({"allOf":[{"properties":{"a":{"type":"integer"}},"required":["a"]},{"type":"object",
          "properties":{"b":{"type":"null"},"a":{"maximum":3}},"required":["b","a"]},true]})",
       {R"({"a":1,"b":null})"},
       {R"({"a":1})", R"({"b":null})", R"({"a":4,"b":null})"}},
      {R"({"$ref":"#/$defs/n","exclusiveMaximum":5,"title":"t","$defs":{"n":{"type":"number","maximum":7}}})",
       {"4", "4.5", "-1"},
       {"5", "6", "null"}},
      {R"({"type":["integer","string","null"],"oneOf":[{"type":"number"},{"type":["null","boolean"]}]})",
       {"1", "null"},
       {"1.5", "true", R"("a")"}},
      {R"({"type":"string","anyOf":[{"const":"a"},{"enum":["b",1]},{"type":"null"}]})",
       {R"("a")", R"("b")"},
       {"1", "null"}},
      {R"({"allOf":[{"enum":[1,2,3]},{"enum":[3,2.0,7]}],"const":3})", {"3"}, {"2"}},
      {R"({"minLength":1,"allOf":[{"minLength":3},{"maxLength":4,"type":"string"},{"maxLength":9}]})",
       {R"("abc")", R"("abcd")"},
       {R"("ab")", R"("abcde")"}},
      {R"({"allOf":[{"anyOf":[{"minimum":0},{"type":"null"}]},{"anyOf":[{"maximum":5},{"type":"string"}]}],
          "type":["integer","null","string"]})",
       {"0", "5", "null", R"("a")"},
       {"-1", "6", "2.5", "true"}},
      {R"({"type":"array","items":{"type":"integer"},"allOf":[{"items":{"minimum":3},"minItems":1}]})",
       {"[3]", "[3,4]"},
       {"[]", "[2]", R"(["a"])"}},
      {R"({"$ref":"#/$defs/node","required":["next"],"$defs":{"node":{"type":"object","properties":{
          "next":{"anyOf":[{"$ref":"#/$defs/node","required":["next"]},{"type":"null"}]}}}}})",
       {R"({"next":null})", R"({"next":{"next":null}})"},
       {"{}", R"({"next":{}})"}},
      {R"({"type":"object","properties":{"a":{"type":"integer"}},"nullable":true,"allOf":[{"required":["a"]}]})",
       {"null", R"({"a":1})"},
       {"{}"}},
      {R"({"anyOf":[false,{"minimum":2}],"type":"integer"})", {"2"}, {"1"}},
      {R"({"allOf":[{"properties":{"q\"\n":{"type":"null"}}},{"type":"object","required":["q\"\n"]}]})",
       {R"({"q\"\n":null})"},
       {"{}"}},
  });
}

TEST_CASE("dates exist in the calendar") {
  using namespace std::chrono;
  const auto date = grammar_from_schema(R"({"format":"date"})").value();
  const auto instant = grammar_from_schema(R"({"type":"string","format":"date-time"})").value();
  for (const int at : {0, 4, 100, 400, 1900, 1996, 2000, 2023, 2024, 2100, 2400, 9999}) {
    for (unsigned m = 0; m <= 13; ++m) {
      for (unsigned d = 0; d <= 32; ++d) {
        const std::string text = fmt::format("{:04}-{:02}-{:02}", at, m, d);
        INFO(text);
        const bool exists = (year(at) / month(m) / day(d)).ok();
        REQUIRE(matches(date, '"' + text + '"') == exists);
        REQUIRE(matches(instant, '"' + text + "T23:59:59Z\"") == exists);
      }
    }
  }
}

TEST_CASE("references are URI fragments that hold JSON pointers") {
  check({
      {R"({"$ref":"#/$defs/a%20b","$defs":{"a b":{"type":"integer"}}})", {"1"}, {"null"}},
      {R"({"$ref":"#/$defs/%C3%A9%25~1~0","$defs":{"\u00e9%/~":{"type":"integer"}}})", {"1"}, {"null"}},
      {R"({"$ref":"#/$defs/a%7E1b","$defs":{"a/b":{"type":"integer"}}})", {"1"}, {"null"}},
      {R"({"$ref":"#n","$defs":{"x":{"$anchor":"n","type":"integer"}}})", {"1"}, {"null"}},
      {R"({"$ref":"http://a/n#/$defs/i","$defs":{"x":{"$id":"http://a/n","$defs":{"i":{"type":"integer"}}}}})",
       {"1"},
       {"null"}},
      {R"({"$dynamicRef":"#n","$defs":{"x":{"$dynamicAnchor":"n","type":"integer"}}})", {"1"}, {"null"}},
      {R"({"type":"array","items":{"$recursiveRef":"#"}})", {"[[],[[]]]"}, {"[1]"}},
      {R"({"$ref":"#/$defs/50%","$defs":{"50%":{"type":"integer"}}})", {"1"}, {"null"}},
      {R"({"$ref":"#/$defs/a%zz","$defs":{"a%zz":{"type":"integer"}}})", {"1"}, {"null"}},
  });
}

TEST_CASE("unsupported keywords may cost one subschema only") {
  const auto grammar = [](std::string_view schema) {
    return compile_grammar(
               [&](auto& definition) {
                 return grammar::parse_json_schema(
                     schema, definition, {.unsupported = grammar::UnsupportedKeywords::kIgnore, .only_declared = true});
               },
               byte_vocabulary(), {kEnd})
        .value();
  };
  const auto one = grammar(R"({"type":"object","properties":{"a":{"type":"integer","multipleOf":12345678},
      "b":{"type":"string","pattern":"(?=x)y"},"c":{"type":"boolean"},"d":{"type":"object","required":5}},
      "required":["a"],"not":{"unevaluatedItems":false}})");
  CHECK(matches(one, R"({"a":3,"b":"z","c":true,"d":{"x":1}})"));
  CHECK(!matches(one, R"({"a":"3"})"));
  CHECK(!matches(one, R"({"b":"x"})"));
  CHECK(!matches(one, R"({"a":3,"c":1})"));
  CHECK(!matches(one, R"({"a":3,"d":1})"));
  CHECK(!matches(one, R"({"a":3,"e":1})"));
  const auto whole = grammar(R"({"type":"object","required":["x"],"properties":{"y":{}}})");
  CHECK(matches(whole, R"({"x":1,"y":2})"));
  CHECK(!matches(whole, "1"));
}

TEST_CASE("bounds of integers hold for every number") {
  std::mt19937_64 random(test_seed());
  INFO("seed " << test_seed());
  for (int trial = 0; trial < 60; ++trial) {
    const auto pick = [&] { return static_cast<int64_t>(random() % 2400) - 1200; };
    int64_t low = pick();
    int64_t high = pick();
    if (low > high) std::swap(low, high);
    const auto grammar =
        grammar_from_schema(fmt::format(R"({{"type":"integer","minimum":{},"maximum":{}}})", low, high));
    INFO(low << " to " << high);
    REQUIRE(message_of(grammar) == "no error");
    for (int64_t number = -1300; number <= 1300; number += 1 + static_cast<int64_t>(random() % 3)) {
      INFO(number);
      REQUIRE(matches(*grammar, std::to_string(number)) == (low <= number && number <= high));
    }
    REQUIRE(!matches(*grammar, "-0"));
  }
}

TEST_CASE("bounds of numbers") {
  check({
      {R"({"type":"integer","exclusiveMinimum":0})",
       {"1", "10", "999999999999999999"},
       {"0", "-1", "1000000000000000000"}},
      {R"({"type":"integer","maximum":18446744073709551616})",
       {"18446744073709551616", "18446744073709551615", "0", "-18446744073709551617"},
       {"18446744073709551617", "20000000000000000000", "100000000000000000000"}},
      {R"({"type":"integer","minimum":18446744073709551615})",
       {"18446744073709551615", "18446744073709551616", "999999999999999999999"},
       {"18446744073709551614", "0", "9223372036854775807", "-18446744073709551616"}},
      {R"({"type":"integer","exclusiveMinimum":-1000000000000000000019884624838656,)"
       R"("exclusiveMaximum":-1000000000000000000019884624838653})",
       {"-1000000000000000000019884624838655", "-1000000000000000000019884624838654"},
       {"-1000000000000000000019884624838656", "-1000000000000000000019884624838653", "0"}},
      {R"({"type":"integer","minimum":1.5e1,"maximum":20e0})", {"15", "20"}, {"14", "21"}},
      {R"({"type":"integer","maximum":1e400})", {"999999999999999999", "-1"}, {}},
      {R"({"type":"integer","minimum":-1e400,"maximum":-1e-400})", {"-1"}, {"0", "1"}},
      {R"({"type":"number","minimum":9007199254740993,"maximum":9007199254740993.0})",
       {"9007199254740993", "9007199254740993.0"},
       {"9007199254740992", "9007199254740994", "9007199254740993.1"}},
      {R"({"enum":[18446744073709551616,1e400,-0]})",
       {"18446744073709551616", "1e400", "-0"},
       {"18446744073709552000"}},
      {R"({"const":0.10})", {"0.10"}, {"0"}},
      {R"({"type":"integer","maximum":-5})", {"-5", "-10", "-99"}, {"-4", "0", "5"}},
      {R"({"type":"integer","minimum":1.5,"exclusiveMaximum":3.5})", {"2", "3"}, {"1", "4"}},
      {R"({"type":"integer","minimum":5,"exclusiveMinimum":true})", {"6"}, {"5"}},
      {R"({"type":"number","minimum":0,"maximum":1})", {"0", "0.0", "0.5", "1", "1.000"}, {"1.01", "-0.1", "2", "1e0"}},
      {R"({"type":"number","exclusiveMinimum":0,"exclusiveMaximum":10})",
       {"0.1", "9.99", "5"},
       {"0", "0.0", "10", "10.0"}},
      {R"({"type":"number","minimum":-2,"maximum":3})",
       {"-2", "-2.0", "-1.9", "-0.5", "0", "2.9", "3.0"},
       {"-2.1", "3.1", "-3"}},
      {R"({"type":"number","minimum":-20,"exclusiveMaximum":-10})",
       {"-20", "-10.5", "-19.9"},
       {"-10", "-10.0", "-9", "-21"}},
      {R"({"type":"number","minimum":100})", {"100", "100.5", "12345.6"}, {"99.9", "0", "-100"}},
      {R"({"type":"number","minimum":-0.5,"exclusiveMaximum":1.25})",
       {"-0.5", "-0.49", "0", "1.2", "1.249", "1.2499"},
       {"-0.51", "1.25", "1.250", "1.3", "2"}},
      {R"({"type":"number","multipleOf":0.01})", {"1", "2.5", "0.07", "-3.140"}, {"0.001", "1.234"}},
      {R"({"type":"integer","multipleOf":5,"minimum":1,"maximum":12})", {"5", "10"}, {"0", "7", "15"}},
      {R"({"type":"integer","multipleOf":1000})", {"0", "-7000", "123000"}, {"100", "1001"}},
  });
}

TEST_CASE("what a schema asks for in vain is refused by name and place") {
  const std::pair<const char*, const char*> cases[] = {
      {"{", "schema: it is not valid JSON"},
      {"5", "schema: wanted an object, true or false"},
      {"false", "schema: no value satisfies it"},
      {R"({"type":"strin"})", "schema: there is no type 'strin'"},
      {R"({"type":5})", "schema: type: wanted a string, or an array of strings"},
      {R"({"type":"array","uniqueItems":true})", "schema: the keyword 'uniqueItems' is supported only"},
      {R"({"not":{}})", "schema: no value satisfies it"},
      {R"({"type":"object","patternProperties":{"(":{}}})", "schema.patternProperties.(: pattern: "},
      {R"({"oneOf":[{"type":"integer"},{"type":"integer"}]})", "schema: no value satisfies it"},
      {R"({"allOf":[{"type":"null"},{"type":"string"}]})", "schema: no value satisfies it"},
      {R"({"allOf":[5,{"type":"null"}]})", "schema.allOf[0]: wanted an object, true or false"},
      {R"({"anyOf":[]})", "schema.anyOf: wanted an array of at least one schema"},
      {R"({"enum":[]})", "schema: enum: wanted an array of at least one value"},
      {R"({"$ref":"other.json"})", "schema: $ref: only references within the schema are supported"},
      {R"({"$ref":"#/$defs/x"})", "schema: $ref: there is no '#/$defs/x'"},
      {R"({"$ref":"#x"})", "schema: $ref: there is no '#x'"},
      {R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})", "no text matches it"},
      {R"({"type":"object","additionalProperties":false,"required":["b"]})", "schema: no value satisfies it"},
      {R"({"type":"string","minLength":3,"maxLength":2})", "schema: no value satisfies it"},
      {R"({"type":"string","minLength":-1})", "schema: minLength: wanted a count"},
      {R"({"type":"string","minLength":1e9})", "schema: minLength: wanted at most 100000"},
      {R"({"type":"string","pattern":"(a"})", "schema: pattern: wanted ')' (at byte 2)"},
      {R"({"type":"array","minItems":2,"maxItems":1})", "schema: no value satisfies it"},
      {R"({"type":"array","prefixItems":[{}],"items":false,"minItems":2})", "no text matches it"},
      {R"({"type":"integer","minimum":2,"maximum":1})", "no text matches it"},
      {R"({"type":"integer","minimum":1e400})", "schema: minimum: wanted a number of at most 64 digits"},
  };
  for (const auto& [schema, message] : cases) {
    INFO(schema << ": " << message_of(grammar_from_schema(schema)));
    CHECK(message_of(grammar_from_schema(schema)).starts_with(message));
  }
  const auto with_properties = [](int count, std::string_view more) {
    std::string properties;
    for (int i = 0; i < count; ++i) properties += fmt::format(R"({}"a{}":{{"type":"null"}})", i > 0 ? "," : "", i);
    return message_of(grammar_from_schema(fmt::format(R"({{"properties":{{{}}}{}}})", properties, more)));
  };
  CHECK(with_properties(1500, "") == "no error");
  CHECK(with_properties(2001, "") == "schema: properties: wanted at most 2000");
  CHECK(with_properties(200, R"(,"additionalProperties":true)") == "no error");
  CHECK(with_properties(1500, R"(,"additionalProperties":true)") == "no error");
  std::string deep = "{}";
  for (int i = 0; i < 400; ++i) deep = R"({"items":)" + deep + "}";
  CHECK(message_of(grammar_from_schema(deep)) == "no error");
  // Each part has two ways to be violated, and all have to be.
  std::string parts;
  for (int i = 0; i < 40; ++i) {
    parts += fmt::format(R"({}{{"properties":{{"a{}":{{"minimum":{}}},"b{}":{{"maximum":{}}}}}}})", i > 0 ? "," : "", i,
                         i, i, i);
  }
  CHECK(message_of(grammar_from_schema(R"({"type":"object","not":{"anyOf":[)" + parts + "]}}")) == "no error");
}

TEST_CASE("whatever is written by a schema is valid under it") {
  INFO("seed " << test_seed());
  std::mt19937_64 random(test_seed());
  const char* schemas[] = {
      R"({"type":"object","properties":{"name":{"type":"string","minLength":1,"maxLength":8},
          "age":{"type":"integer","minimum":0,"maximum":150},
          "tags":{"type":"array","items":{"enum":["x","y\n","\u00e9"]},"maxItems":3},
          "best":{"anyOf":[{"type":"null"},{"type":"number","minimum":-1,"maximum":1}]}},"required":["name","tags"],
          "additionalProperties":false})",
      R"({"type":"array","items":{"$ref":"#/$defs/node"},"minItems":1,"maxItems":4,"$defs":{"node":{"type":"object",
          "properties":{"value":{"type":["string","integer","boolean"]},
          "next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},
          "required":["value"],"additionalProperties":false}}})",
      R"({"type":"object","properties":{"ab":{"type":"integer"}},
          "additionalProperties":{"type":"string","maxLength":3}})"};
  size_t whole = 0;
  for (const char* schema : schemas) {
    const auto grammar = grammar_from_schema(schema).value();
    simdjson::dom::parser schema_parser;
    // The checker does not know "$defs", which says nothing of a value.
    std::string known = schema;
    if (const auto at = known.find("\"$defs\""); at != std::string::npos) known.replace(at, 7, "\"description\"");
    while (known.find("#/$defs") != std::string::npos) known.replace(known.find("#/$defs"), 7, "#/description");
    const simdjson::dom::element root = schema_parser.parse(known);
    for (int trial = 0; trial < 150; ++trial) {
      const RandomText written = random_text(grammar, random, 400);
      if (!written.is_whole) continue;
      INFO(written.text);
      simdjson::dom::parser parser;
      simdjson::dom::element value;
      REQUIRE(parser.parse(written.text).get(value) == simdjson::SUCCESS);
      REQUIRE(matches(value, root, root));
      ++whole;
    }
  }
  CHECK(whole > 100);
}
