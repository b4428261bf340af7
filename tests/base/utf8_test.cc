#include "base/utf8.h"

#include <catch2/catch.hpp>

using namespace millrace;

TEST_CASE("every code point survives a round trip") {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    append_utf8(text, c);
    const DecodedUtf8 step = decode_utf8(text);
    if (!(step.valid && step.code_point == c && step.length == text.size())) FAIL("code point " << uint32_t{c});
  }
}

TEST_CASE("ill-formed sequences are replaced as Unicode advises") {
  REQUIRE(replace_invalid_utf8("\xC0\xAF") == "\uFFFD\uFFFD");
  REQUIRE(replace_invalid_utf8("\xED\xA0\x80") == "\uFFFD\uFFFD\uFFFD");
  REQUIRE(replace_invalid_utf8("\xF0\x9F\x98x") == "\uFFFDx");
  REQUIRE(replace_invalid_utf8("\xF4\x90\x80\x80") == "\uFFFD\uFFFD\uFFFD\uFFFD");
  REQUIRE(decode_utf8("\xF0\x9F\x98").truncated);
  REQUIRE_FALSE(decode_utf8("\xF0\x9F\x41").truncated);
  REQUIRE_FALSE(is_valid_utf8("a\xE2\x82"));
  REQUIRE(is_valid_utf8("a\xE2\x82\xAC"));
}
