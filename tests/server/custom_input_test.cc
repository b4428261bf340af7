#include "server/openai/custom_input.h"

#include <catch2/catch.hpp>

using millrace::server::openai::CustomInput;

namespace {

/// Returns the input of `arguments` that come in pieces of `size` bytes.
std::string decode(std::string_view arguments, size_t size) {
  CustomInput input;
  std::string out;
  for (size_t at = 0; at < arguments.size(); at += size) out += input.push(arguments.substr(at, size));
  return out + input.finish();
}

void check_all_cuts(std::string_view arguments, std::string_view expected) {
  for (size_t size = 1; size <= arguments.size(); ++size) {
    INFO(size);
    CHECK(decode(arguments, size) == expected);
  }
}

}  // namespace

TEST_CASE("The input of a custom call is decoded at every cut") {
  check_all_cuts(R"({"input": "*** Begin\n\"x\" \\ \/ \t\u00e9\ud83d\ude00ü*** End"})",
                 "*** Begin\n\"x\" \\ / \t\u00e9\U0001F600ü*** End");
  check_all_cuts("\n { \"input\" :\t\"a\"\n}", "a");
  check_all_cuts(R"({"input":""})", "");
}

TEST_CASE("A lone surrogate in a custom call becomes U+FFFD") {
  check_all_cuts(R"({"input":"a\ud83db\ude00\ud83d\n"})", "a\uFFFDb\uFFFD\uFFFD\n");
  check_all_cuts(R"({"input":"\ud83d\ud83d\ude00\ud83d"})", "\uFFFD\U0001F600\uFFFD");
}

TEST_CASE("Arguments of another form are the input themselves") {
  for (const char* arguments : {R"({"text":"a"})", "ls -l", R"(["input"])", R"({"input":1})", "{"}) {
    check_all_cuts(arguments, arguments);
  }
}

TEST_CASE("What a custom call has of its input arrives before the end") {
  CustomInput input;
  CHECK(input.push(R"({"input":"ab)") == "ab");
  CHECK(input.push("c\\") == "c");
  CHECK(input.push("n") == "\n");
}
