#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "server/openai/request.h"
#include "server/test_server.h"

using namespace millrace;
using namespace millrace::test;

TEST_CASE("Texts conversations and tokens are converted") {
  TestServer server;
  const ParsedJson tokens(server.post("/tokenize", R"({"prompt":"a<bos>","return_token_strs":true})").body);
  CHECK(tokens.integer("/count") == 2);
  CHECK(tokens.integer("/tokens/1") == 256);
  CHECK(tokens.string("/token_strs/1") == "<bos>");
  const ParsedJson chat(server.post("/tokenize", R"({"messages":[{"role":"user","content":"x"}]})").body);
  CHECK(chat.integer("/count") == 18);
  CHECK(ParsedJson(server.post("/detokenize", R"({"tokens":[72,105,100000]})").body).string("/prompt") == "Hi");
  CHECK(server.post("/tokenize", "{}").status == 400);
  CHECK(server.post("/detokenize", R"({"tokens":"x"})").status == 400);
  CHECK(server.post("/detokenize", "{}").status == 400);
}

TEST_CASE("A large text is tokenised on the worker") {
  TestServer server;
  const std::string text(100'000, 'x');
  CHECK(ParsedJson(server.post("/tokenize", fmt::format(R"({{"prompt":"{}"}})", text)).body).integer("/count") ==
        100'000);
}

TEST_CASE("Texts are tokenised with or without special tokens") {
  const auto outcome = [](std::string_view members) {
    const auto parsed = server::openai::parse_tokenize_request(fmt::format("{{{}}}", members), {});
    return std::pair(std::get<std::string>(parsed->input), parsed->add_special_tokens);
  };
  using Outcome = std::pair<std::string, std::optional<bool>>;
  CHECK(outcome(R"("prompt":"a")") == Outcome("a", std::nullopt));
  CHECK(outcome(R"("content":"a")") == Outcome("a", false));
  CHECK(outcome(R"("content":"a","add_special":true)") == Outcome("a", true));
  CHECK(outcome(R"("content":"a","prompt":"b")") == Outcome("b", std::nullopt));
  CHECK(outcome(R"("prompt":"a","add_special_tokens":false)") == Outcome("a", false));
}
