#include "server/reasoning_limit.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "grammar/vocabulary.h"
#include "server/messages/message_server.h"

using namespace millrace;
using namespace millrace::test;

namespace {

/// A template whose prompt opens the reasoning where `enable_thinking` says so.
constexpr std::string_view kThinks = "{{ messages[-1].content }}{% if enable_thinking %}<think>{% endif %}";

struct ThinkingServer : MessageServer {
  explicit ThinkingServer(std::optional<text::ReasoningFormat> format) : MessageServer(kThinks, options_of(format)) {}

  static server::ServerOptions options_of(std::optional<text::ReasoningFormat> format) {
    server::ServerOptions options;
    options.detect_reasoning_format = false;
    options.reasoning_format = format;
    return options;
  }
  [[nodiscard]] HttpReply chat(std::string_view members) const {
    return post("/v1/chat/completions",
                fmt::format(R"({{"messages":[{{"role":"user","content":"hi"}}],{}}})", members));
  }
};

}  // namespace

TEST_CASE("A thinking budget reaches the engine with the tags") {
  ThinkingServer server(text::ReasoningFormat::kThink);
  REQUIRE(server.chat(R"("thinking_token_budget":7,"n":2,"enable_thinking":true)").status == 200);
  const auto seen = server.engine.seen();
  REQUIRE(seen.size() == 2);
  REQUIRE(seen[0].reasoning_limit != nullptr);
  CHECK(seen[0].reasoning_limit == seen[1].reasoning_limit);
  const sched::ReasoningLimit& limit = *seen[0].reasoning_limit;
  CHECK(limit.max_tokens == 7);
  CHECK(limit.begins_inside);
  CHECK(limit.start == "<think>");
  CHECK(limit.end == "</think>");
  std::string spelled;
  for (const TokenId token : limit.end_tokens) spelled += limit.vocabulary->text_of(token);
  CHECK(spelled == "</think>");

  REQUIRE(server.ask(R"("max_tokens":2000,"thinking":{"type":"enabled","budget_tokens":1024})").status == 200);
  CHECK(server.engine.seen().back().reasoning_limit->max_tokens == 1024);
  REQUIRE(server.chat(R"("thinking_budget":0)").status == 200);
  CHECK_FALSE(server.engine.seen().back().reasoning_limit->begins_inside);
  REQUIRE(server.chat(R"("thinking_budget":-1)").status == 200);
  CHECK(server.engine.seen().back().reasoning_limit == nullptr);
}

TEST_CASE("A model without tags of reasoning refuses a budget") {
  ThinkingServer server(std::nullopt);
  const HttpReply reply = server.chat(R"("thinking_budget":7)");
  CHECK(reply.status == 400);
  CHECK(ParsedJson(reply.body).string("/error/param") == "thinking_budget");
  const HttpReply message = server.ask(R"("max_tokens":2000,"thinking":{"type":"enabled","budget_tokens":1024})");
  CHECK(message.status == 200);
  const HttpReply continued = server.post(
      "/v1/chat/completions",
      R"({"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"so"}],"thinking_budget":7,)"
      R"("add_generation_prompt":false,"continue_final_message":true})");
  CHECK(continued.status == 200);
  CHECK(server.engine.seen().back().reasoning_limit == nullptr);
}

TEST_CASE("A response takes a thinking budget as a chat does") {
  ThinkingServer server(text::ReasoningFormat::kSeed);
  REQUIRE(server.post("/v1/responses", R"({"input":"hi","thinking_token_budget":9})").status == 200);
  CHECK(server.engine.seen().back().reasoning_limit->max_tokens == 9);
  CHECK(server.engine.seen().back().reasoning_limit->end == "</seed:think>");
}
