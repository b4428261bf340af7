#include "base/json_value.h"

#include <simdjson.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/random.h"

namespace millrace {
namespace {

/// Parses a copy that ends where memory that may be read ends, so that a sanitizer sees any byte read beyond it.
struct Parsed {
  explicit Parsed(std::string_view json, const JsonOptions& options = {})
      : text(new char[json.size()]), document(parse(json, options)) {}
  Result<JsonDocument> parse(std::string_view json, const JsonOptions& options) {
    if (!json.empty()) std::memcpy(text.get(), json.data(), json.size());
    return JsonDocument::parse(std::string_view(text.get(), json.size()), options);
  }
  [[nodiscard]] bool ok() const { return document.has_value(); }
  std::unique_ptr<char[]> text;
  Result<JsonDocument> document;
};

std::string reprinted(std::string_view json, const JsonOptions& options = {}) {
  const Parsed parsed(json, options);
  return parsed.document ? to_json(parsed.document->root()) : "refused";
}

std::string problem_of(std::string_view json, const JsonOptions& options = {}) {
  const Parsed parsed(json, options);
  return parsed.document ? "" : parsed.document.error().message;
}

TEST_CASE("JSON numbers keep the text they are written as", "[json]") {
  for (const char* number :
       {"0", "-0", "1", "-1", "18446744073709551615", "18446744073709551616", "-9223372036854775809",
        "1000000000000000019884624838656", "1.0", "0.10", "1e2", "1E+2", "-1.5e-3", "1e400", "-1e400", "1e-400",
        "123456789012345678901234567890.123456789012345678901234567890"}) {
    CHECK(reprinted(number) == number);
    CHECK(reprinted(fmt::format(" [ {} , {{ \"a\" : {} }} ] ", number, number)) ==
          fmt::format("[{},{{\"a\":{}}}]", number, number));
    CHECK(is_json_number(number));
  }
}

TEST_CASE("JSON refuses what is no number of it", "[json]") {
  for (const char* number :
       {"01",    "-01", "00",  "+1",       ".5",        "1.",  "1.e5", "1e", "1e+", "--1",   "-", "0x10",
        "1_000", "1 2", "NaN", "Infinity", "-Infinity", "nan", "inf",  "1f", "- 1", "1e5.5", "-a"}) {
    INFO(number);
    CHECK(!Parsed(number).ok());
    CHECK(!Parsed(fmt::format("[{}]", number)).ok());
    CHECK(!is_json_number(number));
  }
  CHECK(!is_json_number(" 1"));
  CHECK(!is_json_number("1 "));
  CHECK(!is_json_number("\"1\""));
  CHECK(!is_json_number(""));
}

TEST_CASE("JSON numbers convert on demand within the range of the type", "[json]") {
  struct Case {
    std::string text;
    std::optional<int64_t> as_int;
    std::optional<uint64_t> as_uint;
    double as_double;
    bool is_integer;
  };
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::vector<Case> cases = {
      {"0", 0, 0, 0.0, true},
      {"-0", 0, 0, -0.0, true},
      {"-1", -1, std::nullopt, -1.0, true},
      {"9223372036854775807", INT64_MAX, INT64_MAX, 0x1p63, true},
      {"9223372036854775808", std::nullopt, uint64_t{1} << 63, 0x1p63, true},
      {"-9223372036854775808", INT64_MIN, std::nullopt, -0x1p63, true},
      {"-9223372036854775809", std::nullopt, std::nullopt, -0x1p63, true},
      {"18446744073709551615", std::nullopt, UINT64_MAX, 0x1p64, true},
      {"18446744073709551616", std::nullopt, std::nullopt, 0x1p64, true},
      {"1.0", std::nullopt, std::nullopt, 1.0, false},
      {"1e2", std::nullopt, std::nullopt, 100.0, false},
      {"0.1", std::nullopt, std::nullopt, 0.1, false},
      {"1e400", std::nullopt, std::nullopt, kInfinity, false},
      {"-1e400", std::nullopt, std::nullopt, -kInfinity, false},
      {"1e-400", std::nullopt, std::nullopt, 0.0, false},
      {"2.2250738585072011e-308", std::nullopt, std::nullopt, 2.2250738585072011e-308, false},
      {"5e-324", std::nullopt, std::nullopt, 5e-324, false},
      {"1" + std::string(400, '0'), std::nullopt, std::nullopt, kInfinity, true}};
  for (const Case& each : cases) {
    INFO(each.text);
    const Parsed parsed(each.text);
    REQUIRE(parsed.ok());
    const JsonValue value = parsed.document->root();
    int64_t signed_value = 77;
    uint64_t unsigned_value = 77;
    double number = 77;
    CHECK(value.get(signed_value) == each.as_int.has_value());
    CHECK(signed_value == each.as_int.value_or(77));
    CHECK(value.get(unsigned_value) == each.as_uint.has_value());
    CHECK(unsigned_value == each.as_uint.value_or(77));
    CHECK(value.get(number));
    CHECK(number == each.as_double);
    CHECK(std::signbit(number) == std::signbit(each.as_double));
    CHECK(value.is_integer() == each.is_integer);
    bool flag = false;
    CHECK(!value.get(flag));
  }
}

TEST_CASE("JSON of model files may hold NaN and infinities", "[json]") {
  CHECK(reprinted("[NaN, Infinity, -Infinity, 1]", kModelFileJson) == "[NaN,Infinity,-Infinity,1]");
  const Parsed parsed("{\"a\": -Infinity, \"b\": NaN}", kModelFileJson);
  REQUIRE(parsed.ok());
  JsonObject object;
  REQUIRE(parsed.document->root().get(object));
  double number = 0;
  REQUIRE(object["a"].get(number));
  CHECK(number == -std::numeric_limits<double>::infinity());
  REQUIRE(object["b"].get(number));
  CHECK(std::isnan(number));
  CHECK(!object["a"].is_integer());
  for (const char* wrong : {"nan", "-NaN", "Inf", "-Inf", "Infinityx", "-Infinit", "NaN1", "- Infinity"}) {
    INFO(wrong);
    CHECK(!Parsed(wrong, kModelFileJson).ok());
  }
  CHECK(problem_of("[1,\n  NaN]") == "line 2, column 3: found NaN, wanted a value");
}

TEST_CASE("JSON may begin with a byte-order mark and has no other", "[json]") {
  CHECK(reprinted("\xEF\xBB\xBF{\"a\":1}") == "{\"a\":1}");
  CHECK(!Parsed("\xEF\xBB\xBF").ok());
  CHECK(!Parsed("\xEF\xBB\xBF\xEF\xBB\xBF{}").ok());
  CHECK(!Parsed("{}\xEF\xBB\xBF").ok());
  CHECK(!Parsed("\xEF\xBB").ok());
}

TEST_CASE("JSON errors say where", "[json]") {
  CHECK(problem_of("") == "line 1, column 1: the text ends, wanted a value");
  CHECK(problem_of("{\"a\": ") == "line 1, column 7: the text ends, wanted a value");
  CHECK(problem_of("{\"a\": 1") == "line 1, column 8: the text ends, wanted ',' or '}'");
  CHECK(problem_of("{\n \"a\" 1}") == "line 2, column 6: found '1', wanted ':'");
  CHECK(problem_of("[1,]") == "line 1, column 4: found ']', wanted a value");
  CHECK(problem_of("{\"a\":1,}") == "line 1, column 8: found '}', wanted a member's name in quotes");
  CHECK(problem_of("[1 2]") == "line 1, column 4: found '2', wanted ',' or ']'");
  CHECK(problem_of("{} {}") == "line 1, column 4: found '{', wanted the end of the text");
  CHECK(problem_of("\"abc") == "line 1, column 5: the text ends within a string");
  CHECK(problem_of("[\"a\nb\"]") == "line 1, column 4: the control character 0x0a within a string");
  CHECK(problem_of("[tru]") == "line 1, column 2: found tru, wanted a value");
  CHECK(problem_of("[01]") == "line 1, column 2: found 01, wanted a value");
  CHECK(problem_of("[\xC3\xA9]") == "line 1, column 2: found '\xC3\xA9', wanted a value");
  CHECK(problem_of("[\"\xFF\"]") == "line 1, column 3: byte 0xff is not valid UTF-8");
  CHECK(problem_of("[\"\xED\xA0\x80\"]") == "line 1, column 3: byte 0xed is not valid UTF-8");
  const std::string bad_escape =
      "line 1, column 2: the string has an escape that JSON lacks, or half of a surrogate pair";
  CHECK(problem_of("[\"\\x\"]") == bad_escape);
  CHECK(problem_of("[\"\\u12\"]") == bad_escape);
  CHECK(problem_of("[\"\\ud83d\"]") == bad_escape);
  CHECK(problem_of("{\"\\x\":1}") == bad_escape);
  CHECK(problem_of("{} x") == "line 1, column 4: found 'x', wanted the end of the text");
  CHECK(problem_of("[1, 2} 3") == "line 1, column 6: found '}', wanted ',' or ']'");
  CHECK(problem_of("[\"a\":1]") == "line 1, column 5: found ':', wanted ',' or ']'");
  CHECK(problem_of("{\"a\":\"b\" \"c\":1}") == "line 1, column 10: found '\"', wanted ',' or '}'");
  CHECK(problem_of("{\"a\":[] \"c\":1}") == "line 1, column 9: found '\"', wanted ',' or '}'");
  CHECK(problem_of("{1:2}") == "line 1, column 2: found '1', wanted a member's name in quotes");
  CHECK(!Parsed("[\"\\udc00\"]").ok());
  CHECK(!Parsed("[\"\\ud83d\\u0041\"]").ok());
  CHECK(!Parsed(std::string_view("[1]\0", 4)).ok());
  CHECK(!Parsed("\"a\\").ok());
  CHECK(!Parsed("\"a\\\"").ok());
}

TEST_CASE("JSON strings are decoded", "[json]") {
  const Parsed parsed(R"(["plain", "\"\\\/\b\f\n\r\t", "\u0041\u00e9\u20ac\ud83d\ude00\u0000", "a\nb", ""])");
  REQUIRE(parsed.ok());
  JsonArray array;
  REQUIRE(parsed.document->root().get(array));
  std::vector<std::string> texts;
  for (const JsonValue item : array) {
    std::string_view text;
    REQUIRE(item.get(text));
    texts.emplace_back(text);
  }
  CHECK(texts == std::vector<std::string>{"plain", "\"\\/\b\f\n\r\t",
                                          std::string("A\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\0", 11), "a\nb", ""});
}

TEST_CASE("A JSON string ends at any distance from the end of a word", "[json]") {
  for (size_t length = 0; length < 40; ++length) {
    for (size_t at = 0; at <= length; ++at) {
      std::string text(length, 'x');
      text.insert(at, "\xC3\xA9\x7F");
      std::string json;
      append_json_string(json, text);
      CHECK(reprinted(json) == json);
      text[at + 2] = '\n';
      json.clear();
      append_json_string(json, text);
      CHECK(reprinted("[" + json + "]") == "[" + json + "]");
      CHECK(reprinted("\"" + text + "\"") == "refused");
    }
  }
}

TEST_CASE("JSON containers know size and order and repeated members", "[json]") {
  const Parsed parsed(R"({"b":[1,[2,3],{"x":4}],"a":{},"b":5,"c":[]})");
  REQUIRE(parsed.ok());
  JsonObject object;
  REQUIRE(parsed.document->root().get(object));
  CHECK(object.size() == 4);
  std::string keys;
  for (const JsonMember member : object) keys += member.key;
  CHECK(keys == "babc");
  JsonArray array;
  REQUIRE(object["b"].get(array));
  CHECK(array.size() == 3);
  CHECK(to_json(array.at(1)) == "[2,3]");
  CHECK(to_json(array.at(2)) == "{\"x\":4}");
  CHECK(array.at(3).is_missing());
  CHECK(object["d"].is_missing());
  JsonValue member;
  CHECK(!object["d"].get(member));
  REQUIRE(object["c"].get(array));
  CHECK(array.empty());
  CHECK(JsonArray().begin() == JsonArray().end());
}

TEST_CASE("A JSON pointer leads to a value", "[json]") {
  const Parsed parsed(R"({"a/b":{"~":[10,[20]]},"":1,"01":2})");
  REQUIRE(parsed.ok());
  const JsonValue root = parsed.document->root();
  CHECK(to_json(root.at_pointer("/a~1b/~0/1/0")) == "20");
  CHECK(to_json(root.at_pointer("/")) == "1");
  CHECK(to_json(root.at_pointer("/01")) == "2");
  CHECK(to_json(root.at_pointer("")) == to_json(root));
  for (const char* nowhere : {"a", "/a~1b/~0/2", "/a~1b/~0/00", "/a~1b/~0/-", "/a~1b/~0/1/0/0", "/b"}) {
    CHECK(root.at_pointer(nowhere).is_missing());
  }
}

TEST_CASE("JSON nests as deep as it may", "[json]") {
  const auto nested = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  CHECK(Parsed(nested(8), {.max_depth = 8}).ok());
  CHECK(problem_of(nested(9), {.max_depth = 8}) == "line 1, column 9: it is nested more than 8 deep");
  CHECK(Parsed(nested(1024)).ok());
  CHECK(!Parsed(nested(1025)).ok());
  CHECK(!Parsed(std::string(1'000'000, '[')).ok());
  CHECK(!Parsed(std::string(1'000'000, '{')).ok());
}

TEST_CASE("A JSON document may be moved", "[json]") {
  const std::string text = R"({"a":"x\ny","b":"plain"})";
  auto parsed = JsonDocument::parse(text);
  REQUIRE(parsed.has_value());
  const JsonValue root = parsed->root();
  const JsonDocument moved = std::move(*parsed);
  CHECK(to_json(root) == text);
  CHECK(to_json(moved.root()) == text);
  CHECK(JsonDocument().root().is_missing());
}

// Texts made of random pieces, mutated: against simdjson, which agrees on all but the size of numbers.

std::string random_json(uint64_t seed, uint64_t& draws, int depth) {
  const auto dice = [&](uint64_t sides) { return static_cast<uint64_t>(uniform_at(seed, draws++) * double(sides)); };
  static const std::vector<std::string> kScalars = {"0",
                                                    "-1",
                                                    "3.25",
                                                    "1e5",
                                                    "-0.5E-3",
                                                    "true",
                                                    "false",
                                                    "null",
                                                    "\"\"",
                                                    "\"a\"",
                                                    "\"\\n\"",
                                                    "\"\\u00e9\"",
                                                    "\"\\ud83d\\ude00\"",
                                                    "\"\xC3\xA9\"",
                                                    "9007199254740993",
                                                    "\"long text, with more than a word\""};
  const std::string space = dice(4) == 0 ? " \n\t" : "";
  if (depth == 0 || dice(3) == 0) return space + kScalars[dice(kScalars.size())] + space;
  const bool is_object = dice(2) == 0;
  std::string text = space + (is_object ? "{" : "[") + space;
  const uint64_t count = dice(4);
  for (uint64_t i = 0; i < count; ++i) {
    if (i > 0) text += ',';
    if (is_object) text += "\"k" + std::to_string(i) + "\":";
    text += random_json(seed, draws, depth - 1);
  }
  return text + (is_object ? "}" : "]") + space;
}

TEST_CASE("JSON is read as simdjson reads it when whole or damaged", "[json]") {
  uint64_t draws = 0;
  constexpr uint64_t kSeed = 38;
  size_t accepted = 0;
  size_t refused = 0;
  const auto dice = [&](uint64_t sides) { return static_cast<uint64_t>(uniform_at(kSeed, draws++) * double(sides)); };
  simdjson::dom::parser reference;
  for (int round = 0; round < 20'000; ++round) {
    std::string text = random_json(kSeed, draws, 4);
    const std::string_view damage = ",:[]{}\"\\ \n0123456789-+.eEtruefalsnu\xC3\xA9\xFF\x01";
    for (uint64_t damages = dice(3); damages > 0 && !text.empty(); --damages) {
      const size_t at = dice(text.size());
      switch (dice(3)) {
        case 0: text.erase(at, 1 + dice(3)); break;
        case 1: text.insert(at, 1, damage[dice(damage.size())]); break;
        default: text[at] = damage[dice(damage.size())];
      }
    }
    INFO(text);
    const Parsed parsed(text);
    simdjson::dom::element element;
    const auto failure = reference.parse(text).get(element);
    // Numbers of any size are read here.
    if (failure == simdjson::NUMBER_ERROR && parsed.document) continue;
    REQUIRE(parsed.document.has_value() == (failure == simdjson::SUCCESS));
    if (!parsed.document) {
      ++refused;
      continue;
    }
    ++accepted;
    const std::string printed = to_json(parsed.document->root());
    simdjson::dom::parser again;
    simdjson::dom::element same;
    REQUIRE(again.parse(printed).get(same) == simdjson::SUCCESS);
    REQUIRE(simdjson::minify(same) == simdjson::minify(element));
    REQUIRE(reprinted(printed) == printed);
  }
  CHECK(accepted > 1000);
  CHECK(refused > 1000);
}

}  // namespace
}  // namespace millrace
