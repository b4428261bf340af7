#include "base/json.h"

#include <catch2/catch.hpp>
#include <limits>

using namespace millrace;

TEST_CASE("JsonWriter places commas and nests") {
  std::string out;
  JsonWriter json(out);
  json.begin_object().member("a", 1).key("b").begin_array().value(true).null().value("x").end_array();
  json.key("c").begin_object().end_object().member("d", 0.5).end_object();
  REQUIRE(out == R"({"a":1,"b":[true,null,"x"],"c":{},"d":0.5})");
}

TEST_CASE("JsonWriter keeps the limits of integers") {
  std::string out;
  JsonWriter json(out);
  json.begin_array().value(std::numeric_limits<int64_t>::min()).value(std::numeric_limits<uint64_t>::max());
  json.value(int8_t{-3}).end_array();
  REQUIRE(out == "[-9223372036854775808,18446744073709551615,-3]");
}

TEST_CASE("JSON strings are escaped and always valid UTF-8") {
  std::string out;
  append_json_string(out, "q\"\\\n\x01 \xC3\xA9 \xFF \xE2\x82");
  REQUIRE(out == "\"q\\\"\\\\\\n\\u0001 \xC3\xA9 \xEF\xBF\xBD \xEF\xBF\xBD\"");
}

TEST_CASE("JSON numbers are shortest and null where JSON has none") {
  std::string out;
  JsonWriter json(out);
  json.begin_array().value(0.1).value(0.1f).value(std::numeric_limits<double>::infinity()).end_array();
  REQUIRE(out == "[0.1,0.1,null]");
}
