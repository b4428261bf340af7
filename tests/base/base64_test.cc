#include "base/base64.h"

#include <catch2/catch.hpp>
#include <string_view>

using namespace millrace;

namespace {

std::string base64(std::string_view text) {
  std::string out;
  append_base64(out, std::as_bytes(std::span(text)));
  return out;
}

}  // namespace

TEST_CASE("base64 is that of RFC 4648") {
  REQUIRE(base64("").empty());
  REQUIRE(base64("f") == "Zg==");
  REQUIRE(base64("fo") == "Zm8=");
  REQUIRE(base64("foo") == "Zm9v");
  REQUIRE(base64("foob") == "Zm9vYg==");
  REQUIRE(base64("fooba") == "Zm9vYmE=");
  REQUIRE(base64("foobar") == "Zm9vYmFy");
  REQUIRE(base64("\xfb\xff\xbf") == "+/+/");
}

TEST_CASE("base64 is decoded with and without padding") {
  for (const std::string_view text : {"", "f", "fo", "foo", "foob", "\xfb\xff\xbf"}) {
    std::string spelt = base64(text);
    REQUIRE(decode_base64(spelt) == text);
    while (spelt.ends_with('=')) spelt.pop_back();
    REQUIRE(decode_base64(spelt) == text);
  }
  for (const char* bad : {"Z", "Zg===", "Zm9v!", "Zm 9v", "Zg==Zg==", "Zm9vY"}) REQUIRE_FALSE(decode_base64(bad));
}
