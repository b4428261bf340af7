#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "server/openai/request.h"

using namespace millrace::server::openai;

namespace {

const RequestLimits kRequestLimits{.vocab_size = 1000, .max_choices = 64};

/// Returns the param of the refusal, or "ok".
std::string chat_outcome(const std::string& member) {
  const auto parsed =
      parse_chat_request(fmt::format(R"({{"messages":[{{"role":"user","content":"c"}}],{}}})", member), kRequestLimits);
  return parsed.has_error() ? parsed.error().param : "ok";
}

}  // namespace

TEST_CASE("A chat bounds its reasoning under the names of every server") {
  for (const std::string name : {"thinking_token_budget", "thinking_budget", "thinking_budget_tokens"}) {
    INFO(name);
    const auto budget = [&](const std::string& members) {
      const auto parsed =
          parse_chat_request(R"({"messages":[{"role":"user","content":"c"}],)" + members + '}', kRequestLimits);
      REQUIRE(parsed.has_value());
      return parsed->thinking_budget ? std::to_string(parsed->thinking_budget->tokens) : "none";
    };
    const std::string key = '"' + name + "\":";
    CHECK(budget(key + "0") == "0");
    CHECK(budget(key + "100") == "100");
    CHECK(budget(key + "-1") == "none");
    CHECK(budget(key + "null") == "none");
    CHECK(budget("\"thinking_budget\":7,\"thinking_token_budget\":7,\"thinking_budget_tokens\":7," + key + "8") == "8");
    for (const char* bad : {"-2", "1.5", "\"8\"", "true", "[]", "3000000000"}) CHECK(chat_outcome(key + bad) == name);
  }
}

TEST_CASE("A chat takes thinking and reasoning of other servers") {
  const auto parsed = [](const std::string& members) {
    auto request =
        parse_chat_request(R"({"messages":[{"role":"user","content":"c"}],)" + members + '}', kRequestLimits);
    REQUIRE(request.has_value());
    return *std::move(request);
  };
  const ChatRequest disabled = parsed(R"("thinking":{"type":"disabled"})");
  CHECK(disabled.conversation.enable_thinking == false);
  CHECK(disabled.conversation.reasoning_effort == "none");
  const ChatRequest enabled = parsed(R"("thinking":{"type":"enabled","budget_tokens":70,"clear_thinking":false})");
  CHECK(enabled.conversation.enable_thinking == true);
  CHECK(enabled.conversation.reasoning_effort.empty());
  REQUIRE(enabled.thinking_budget.has_value());
  CHECK(enabled.thinking_budget->tokens == 70);
  CHECK(enabled.thinking_budget->is_wish);
  const ChatRequest budgets = parsed(R"("thinking_budget":5,"thinking":{"type":"auto","budget_tokens":70})");
  CHECK(budgets.thinking_budget->tokens == 5);

  const ChatRequest router = parsed(R"("reasoning":{"effort":"high","max_tokens":9,"exclude":true,"summary":"auto"})");
  CHECK(router.conversation.reasoning_effort == "high");
  CHECK_FALSE(router.conversation.enable_thinking.has_value());
  CHECK(router.thinking_budget->tokens == 9);
  CHECK_FALSE(router.include_reasoning);
  CHECK(parsed(R"("reasoning":{"enabled":false})").conversation.enable_thinking == false);
  CHECK(parsed(R"("reasoning":{"effort":null,"enabled":null,"max_tokens":null})").include_reasoning);
  CHECK(parsed(R"("reasoning":null,"thinking":null)").conversation.reasoning_effort.empty());

  for (const char* bad : {"5", "\"enabled\""}) {
    CHECK(chat_outcome(std::string("\"thinking\":") + bad) == "thinking");
  }
  for (const char* bad : {"{}", R"({"type":"often"})", R"({"type":5})"}) {
    CHECK(chat_outcome(std::string("\"thinking\":") + bad) == "thinking.type");
  }
  CHECK(chat_outcome(R"("thinking":{"type":"enabled","budget_tokens":-1})") == "thinking.budget_tokens");
  CHECK(chat_outcome(R"("reasoning":"high")") == "reasoning");
  CHECK(chat_outcome(R"("reasoning":{"effort":"some"})") == "reasoning.effort");
  CHECK(chat_outcome(R"("reasoning":{"enabled":1})") == "reasoning.enabled");
  CHECK(chat_outcome(R"("reasoning":{"max_tokens":"9"})") == "reasoning.max_tokens");
}
