#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <string>

#include "grammar/json_schema.h"
#include "grammar/read_work.h"
#include "grammar/schema_cases.h"

using namespace millrace;
using namespace millrace::test;

TEST_CASE("large objects have required members in any order") {
  std::string properties;
  for (int i = 0; i < 30; ++i) properties += fmt::format(R"({}"p{:02}":{{"type":"integer"}})", i > 0 ? "," : "", i);
  const auto grammar = grammar_from_schema(fmt::format(
      R"({{"type":"object","properties":{{{}}},"required":["p03","p25"],"additionalProperties":false}})", properties));
  REQUIRE(message_of(grammar) == "no error");
  CHECK(matches(*grammar, R"({"p25":1,"p03":2})"));
  CHECK(matches(*grammar, R"({"p29":1,"p25":1,"p01":2,"p03":2,"p00":3})"));
  CHECK(!matches(*grammar, R"({"p25":1,"p00":2})"));
  CHECK(!matches(*grammar, R"({"p25":1,"p03":2,"p25":3})"));
  CHECK(!matches(*grammar, R"({"p25":1,"p03":2,"x":3})"));
}

TEST_CASE("only declared members where that is wanted") {
  const auto grammar = [](std::string_view schema) {
    return compile_grammar(
               [&](auto& definition) {
                 return grammar::parse_json_schema(schema, definition, {.only_declared = true});
               },
               byte_vocabulary(), {kEnd})
        .value();
  };
  const auto closed = grammar(R"({"type":"object","properties":{"a":{}},"required":["b"]})");
  CHECK(matches(closed, R"({"b":1,"a":2})"));
  CHECK(!matches(closed, R"({"b":1,"c":2})"));
  const auto open = grammar(R"({"type":"object","properties":{"a":{}},"additionalProperties":{"type":"null"}})");
  CHECK(matches(open, R"({"c":null})"));
  const auto free = grammar(R"({"type":"object"})");
  CHECK(matches(free, R"({"c":null})"));
  const auto narrowed = grammar(R"({"properties":{"a":{"minLength":2}}})");
  CHECK(matches(narrowed, R"({"a":"xy"})"));
  CHECK(!matches(narrowed, R"({"a":12})"));
  CHECK(!matches(narrowed, "12"));
}

TEST_CASE("keywords of one type leave other types alone") {
  check({
      {R"({"minLength":2})", {"12", "1.5", R"("ab")", "null", "false", "[]", R"({"a":1})"}, {R"("a")"}},
      {R"({"minimum":3})", {"3", R"("a")", "false", "[1]"}, {"2", "-1"}},
      {R"({"multipleOf":2,"pattern":"^x"})", {"4", R"("xa")", "null"}, {"3", R"("a")"}},
      {R"({"items":{"type":"null"},"maxItems":1})", {"[null]", "[]", R"({"a":[1]})", "7"}, {"[1]", "[null,null]"}},
      {R"({"properties":{"a":{"type":"integer"}},"required":["a"]})",
       {R"({"a":1})", "3", R"("x")", "[{}]", "null"},
       {"{}", R"({"a":"x"})"}},
      {R"({"additionalProperties":false})", {"{}", "12", "[1]"}, {R"({"a":1})"}},
      {R"({"format":"date"})", {R"("2024-02-29")", "12", "{}"}, {R"("2023-02-29")"}},
      {R"({"not":{"minLength":2}})", {R"("a")"}, {R"("ab")", "12", "null"}},
      {R"({"anyOf":[{"type":"integer"},{"minimum":2}]})", {"1", "2.5", R"("a")"}, {"1.5"}},
      {R"({"oneOf":[{"minimum":2},{"maxLength":1}]})", {"1", R"("ab")"}, {"3", R"("a")", "null"}},
      {R"({"if":{"properties":{"k":{"const":1}},"required":["k"]},"then":{"required":["v"]}})",
       {"5", R"({"k":2})", R"({"k":1,"v":0})", "[]"},
       {R"({"k":1})"}},
      {R"({"type":"object","properties":{"a":{"minLength":1},"b":{"required":["c"]}},"required":["a","b"]})",
       {R"({"a":1,"b":null})", R"({"a":"x","b":{"c":1}})"},
       {R"({"a":"","b":1})", R"({"a":1,"b":{}})"}},
  });
}

TEST_CASE("reading a schema takes bounded work") {
  std::string members;
  for (int i = 0; i < 400; ++i) {
    members += fmt::format(R"({}"p{}":{{"type":"string","format":"uri","pattern":"{}$","maxLength":{}}})",
                           i == 0 ? "" : ",", i, i, 1000 + i);
  }
  const auto large = grammar_from_schema(fmt::format(R"({{"type":"object","properties":{{{}}}}})", members));
  REQUIRE(large.has_error());
  CHECK(large.error().code == ErrorCode::kInvalidArgument);
  CHECK(large.error().message.find(fmt::format("{} steps", grammar::ReadWork::kMaxSteps)) != std::string::npos);
}

TEST_CASE("long lists of values take one pass each") {
  std::string up;
  std::string down;
  for (int i = 0; i < 8000; ++i) {
    const std::string value = fmt::format(R"("v{}")", i);
    up += (i == 0 ? "" : ",") + value;
    down = value + (i == 0 ? "" : ",") + down;
  }
  check({{R"({"const":[1,2,1.0],"uniqueItems":false})", {"[1,2,1.0]"}, {"[1,2]"}}});
  const std::string schema = fmt::format(R"({{"allOf":[{{"enum":[{}]}},{{"enum":[{}]}}],"maxLength":4}})", up, down);
  const auto both = grammar_from_schema(schema);
  REQUIRE(message_of(both) == "no error");
  CHECK(matches(*both, R"("v999")"));
  CHECK(!matches(*both, R"("v1000")"));
  const auto repeated = grammar_from_schema(fmt::format(R"({{"enum":[[{0},"v0"],[{0}]],"uniqueItems":true}})", up));
  REQUIRE(message_of(repeated) == "no error");
  CHECK(matches(*repeated, '[' + up + ']'));
  CHECK(!matches(*repeated, '[' + up + R"(,"v0"])"));
}

TEST_CASE("keywords of objects") {
  check({
      {R"({"type":"object","patternProperties":{"^s_":{"type":"string"},"n$":{"type":"integer"}},
          "additionalProperties":false})",
       {"{}", R"({"s_a":"x","n":1})", R"({"xn":2,"s_b":""})"},
       {R"({"s_a":1})", R"({"xn":"x"})", R"({"y":1})", R"({"s_n":1})", R"({"s_n":"x"})"}},
      {R"({"type":"object","properties":{"a":{"type":"integer"}},"patternProperties":{"^a":{"minimum":3}}})",
       {R"({"a":3})", R"({"ab":4,"b":"x"})"},
       {R"({"a":2})", R"({"ab":1})"}},
      {R"({"type":"object","minProperties":2,"maxProperties":3})",
       {R"({"a":1,"b":2})", R"({"a":1,"b":2,"c":3})"},
       {"{}", R"({"a":1})", R"({"a":1,"b":2,"c":3,"d":4})"}},
      {R"({"properties":{"a":{},"b":{},"c":{}},"additionalProperties":false,"minProperties":1,"maxProperties":2})",
       {R"({"c":1})", R"({"c":1,"a":2})"},
       {"{}", R"({"a":1,"b":1,"c":1})"}},
      {R"({"type":"object","maxProperties":0})", {"{}", "{ }"}, {R"({"a":1})"}},
      {R"({"type":"object","propertyNames":{"pattern":"^[a-c]$"}})", {R"({"a":1,"c":{}})"}, {R"({"d":1})"}},
      {R"({"type":"object","propertyNames":{"enum":["x","yy"]},"properties":{"x":{"type":"null"},"z":{}}})",
       {R"({"yy":1,"x":null})"},
       {R"({"z":1})", R"({"x":1})"}},
      {R"({"type":"object","dependentRequired":{"a":["b"]}})",
       {"{}", R"({"b":1})", R"({"b":1,"a":2})", R"({"a":1,"b":2})"},
       {R"({"a":1})"}},
      {R"({"type":"object","dependencies":{"a":{"properties":{"b":{"type":"null"}}},"c":["a"]}})",
       {R"({"b":1})", R"({"a":1,"b":null})", R"({"c":1,"a":2})"},
       {R"({"a":1,"b":1})", R"({"c":1})"}},
      {R"({"type":"object","allOf":[{"properties":{"a":{}}}],"properties":{"b":{}},"unevaluatedProperties":false})",
       {R"({"a":1,"b":2})"},
       {R"({"c":1})"}},
      {R"({"type":"object","dependentSchemas":{"a":{"properties":{"b":{}}}},"unevaluatedProperties":false,
          "properties":{"a":{}}})",
       {R"({"a":1,"b":2})", "{}"},
       {R"({"b":2})"}},
  });
}

TEST_CASE("keywords of arrays") {
  check({
      {R"({"type":"array","items":{"type":"integer"},"contains":{"minimum":5}})",
       {"[5]", "[1,7]", "[7,1,2]", "[6,6]"},
       {"[]", "[1]", R"([5,"x"])"}},
      {R"({"type":"array","contains":{"const":"a"},"minContains":2,"maxItems":3})",
       {R"(["a","a"])", R"([1,"a","a"])"},
       {R"(["a"])", R"([1,"a","b"])", R"(["a","a",1,2])"}},
      {R"({"type":"array","items":{"enum":["a","b",3]},"uniqueItems":true,"minItems":1})",
       {R"(["b"])", R"([3,"a","b"])", R"(["b","a"])"},
       {"[]", R"(["a","a"])", R"(["a","b","a"])"}},
      {R"({"type":"array","items":{"type":["boolean","null"]},"uniqueItems":true})",
       {"[true,false,null]", "[]"},
       {"[null,null]"}},
      {R"({"type":"array","items":{"type":"integer","minimum":1,"maximum":3},"uniqueItems":true,"minItems":2})",
       {"[3,1]", "[1,2,3]", "[2,3,1]"},
       {"[1]", "[1,1]", "[1,2,1]", "[1,4]", "[0,1]"}},
      {R"({"type":"array","items":{"type":["integer","null"],"exclusiveMinimum":-10.5,"exclusiveMaximum":10,)"
       R"("multipleOf":5,"not":{"const":0}},"uniqueItems":true})",
       {"[-10,5,-5,null]", "[5]"},
       {"[0]", "[5,5]", "[10]", "[-15]", "[1]"}},
      {R"({"type":"array","items":{"type":"string"},"uniqueItems":true,"maxItems":1})", {R"(["a"])"}, {R"(["a","b"])"}},
      {R"({"allOf":[{"prefixItems":[{"type":"integer"}]},{"items":{"minimum":3}}],"type":"array"})",
       {"[]", "[3]", "[3,4.5]"},
       {"[1]", R"(["x"])"}},
  });
}

TEST_CASE("keywords that exclude") {
  check({
      {R"({"type":"string","not":{"enum":["a","bc"]}})", {R"("b")", R"("ab")", R"("")"}, {R"("a")", R"("bc")"}},
      {R"({"not":{"type":["object","array","string"]}})", {"1", "null", "true"}, {"{}", "[]", R"("x")"}},
      {R"({"type":"integer","not":{"minimum":3}})", {"2", "-7"}, {"3", "9"}},
      {R"({"type":"integer","not":{"const":3}})", {"2", "33"}, {"3"}},
      {R"({"type":"number","not":{"type":"integer"}})", {"1.5"}, {"1", "1.0"}},
      {R"({"type":"object","not":{"required":["a","b"]}})", {R"({"a":1})", R"({"b":1,"c":2})"}, {R"({"a":1,"b":2})"}},
      {R"({"type":"string","not":{"pattern":"a"}})", {R"("b")"}, {R"("ba")"}},
      {R"({"type":"object","not":{"additionalProperties":{"type":"string"}}})",
       {R"({"a":1})", R"({"a":"x","b":null})"},
       {"{}", R"({"a":"x"})"}},
      {R"({"type":"object","not":{"patternProperties":{"^a":{"type":"string"}}}})",
       {R"({"ab":1})", R"({"b":2,"a":3})"},
       {R"({"b":1})", R"({"ab":"x"})"}},
      {R"({"oneOf":[{"type":"integer"},{"type":"number","minimum":10}]})", {"3", "10.5"}, {"10", "2.5"}},
      {R"({"type":"object","oneOf":[{"required":["a"]},{"required":["b"]}]})",
       {R"({"a":1})", R"({"b":1,"c":2})"},
       {"{}", R"({"a":1,"b":2})"}},
      {R"({"oneOf":[{"properties":{"k":{"const":"x"},"v":{"type":"integer"}},"required":["k"]},
          {"properties":{"k":{"const":"y"},"v":{"type":"string"}},"required":["k"]}],"type":"object"})",
       {R"({"k":"x","v":1})", R"({"v":"s","k":"y"})"},
       {R"({"k":"x","v":"s"})", R"({"k":"z"})"}},
      {R"({"oneOf":[{"type":"object","properties":{"a":{}},"additionalProperties":false},
          {"type":"object","properties":{"a":{},"b":{}},"additionalProperties":false}]})",
       {R"({"b":1})", R"({"a":1,"b":2})"},
       {"{}", R"({"a":1})"}},
      {R"({"type":"object","properties":{"k":{"enum":["x","y"]}},"required":["k"],
          "if":{"properties":{"k":{"const":"x"}}},"then":{"required":["v"]},"else":{"properties":{"v":false}}})",
       {R"({"k":"x","v":1})", R"({"k":"y"})"},
       {R"({"k":"x"})", R"({"k":"y","v":1})"}},
      {R"({"oneOf":[{"format":"ipv4"},{"format":"hostname"}],"type":"string"})", {R"("a.b")"}, {R"("1.2.3.4")"}},
  });
}

TEST_CASE("patterns hold together with lengths and each other") {
  check({
      {R"({"type":"string","pattern":"^[a-z]+$","maxLength":3})", {R"("a")", R"("abc")"}, {R"("")", R"("abcd")"}},
      {R"({"type":"string","pattern":"b","minLength":2,"maxLength":3})",
       {R"("ab")", R"("xbx")"},
       {R"("b")", R"("abab")"}},
      {R"({"type":"string","pattern":"^(jpg|jpeg):[a-z]*$","maxLength":6})",
       {R"("jpg:ab")", R"("jpeg:a")"},
       {R"("jpg:abc")", R"("jpeg:ab")"}},
      {R"({"allOf":[{"pattern":"a"},{"pattern":"b"}],"type":"string"})", {R"("ab")", R"("xbya")"}, {R"("a")"}},
      {R"({"type":"string","format":"email","maxLength":8})", {R"("a@b.c")"}, {R"("aaa@bbb.cc")"}},
      {R"({"type":"string","pattern":"^(?!no)[a-z]+$"})", {R"("yes")", R"("n")"}, {R"("no")", R"("nope")"}},
      {R"({"type":"string","pattern":"^(?=.*\\d)(?=.*[a-z]).{3,}$"})", {R"("a1_")"}, {R"("abc")", R"("a1")"}},
      {R"x({"type":"string","pattern":"(^a$)|(^b$)"})x", {R"("a")", R"("b")"}, {R"("ab")", R"("xa")"}},
      {R"({"enum":["a","b",1],"pattern":"b"})", {R"("b")", "1"}, {R"("a")"}},
  });
}

TEST_CASE("drafts up to 7 ignore what stands beside a reference") {
  const std::string rest = R"("$ref":"#/definitions/n","maximum":5,"definitions":{"n":{"type":"integer"}}})";
  check({
      {(R"({"$schema":"http://json-schema.org/draft-07/schema#",)" + rest).c_str(), {"7"}, {R"("x")"}},
      {("{" + rest).c_str(), {"5"}, {"7"}},
  });
}

TEST_CASE("every keyword that constrains is enforced or refused by name") {
  const std::pair<const char*, const char*> cases[] = {
      {"$ref", R"({"$dynamicRef":"#a"})"},
      {"dynamic", R"({"$dynamicRef":"#a","$defs":{"x":{"$dynamicAnchor":"a"},"y":{"$dynamicAnchor":"a"}}})"},
      {"unevaluatedProperties", R"({"unevaluatedProperties":false,"not":{"not":{"properties":{"a":{}}}}})"},
      {"unevaluatedItems", R"({"unevaluatedItems":false})"},
      {"maxContains", R"({"contains":{"const":1},"minContains":0,"maxContains":1})"},
      {"uniqueItems", R"({"items":{"type":"string"},"uniqueItems":true})"},
      {"uniqueItems", R"({"items":{"type":"integer","minimum":1,"maximum":65},"uniqueItems":true})"},
      {"uniqueItems", R"({"items":{"type":"integer","minimum":1,"maximum":1e300},"uniqueItems":true})"},
      {"uniqueItems", R"({"items":{"type":"number","minimum":1,"maximum":2},"uniqueItems":true})"},
      {"unevaluatedProperties", R"({"allOf":[{"unevaluatedProperties":false}]})"},
      {"uniqueItems", R"({"not":{"uniqueItems":true}})"},
      {"multipleOf", R"({"multipleOf":0})"},
      {"multipleOf", R"({"multipleOf":1234567})"},
  };
  for (const auto& [name, value] : cases) {
    const std::string schema = fmt::format(R"({{"items":{}}})", value);
    const std::string message = message_of(grammar_from_schema(schema));
    INFO(schema << ": " << message);
    CHECK(message.starts_with("schema.items"));
    CHECK(message.find(name) != std::string::npos);
  }
}
