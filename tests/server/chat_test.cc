#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "server/test_server.h"

using namespace millrace;
using namespace millrace::test;

namespace {

constexpr const char* kMessages = R"("messages":[{"role":"user","content":"hi"}])";

std::string body(std::string_view more) {
  return fmt::format("{{{}{}{}}}", kMessages, more.empty() ? "" : ",", more);
}

}  // namespace

TEST_CASE("A chat completion has the OpenAI shape") {
  TestServer server;
  server.engine.on_submit = [](const sched::GenerateRequest&) { return ScriptedReply{.cached_tokens = 4}; };
  const HttpReply reply = server.chat(body(""));
  REQUIRE(reply.status == 200);
  const ParsedJson json(reply.body);
  CHECK_THAT(json.string("/id"), Catch::StartsWith("chatcmpl-"));
  CHECK(json.string("/object") == "chat.completion");
  CHECK(json.string("/choices/0/message/role") == "assistant");
  CHECK(json.string("/choices/0/message/content") == "Hello, world!");
  CHECK(json.string("/choices/0/finish_reason") == "stop");
  CHECK(json.integer("/usage/prompt_tokens_details/cached_tokens") == 4);
  const auto request = server.engine.seen().front();
  const std::string rendered = "[user]hi[assistant]";
  CHECK(std::string(request.prompt.begin(), request.prompt.end()) == rendered);
  CHECK(request.max_tokens == FakeEngine::kContext - rendered.size());
}

TEST_CASE("A chat stream has role content finish usage and done") {
  TestServer server;
  const HttpReply reply = server.chat(body(R"("stream":true,"stream_options":{"include_usage":true})"));
  REQUIRE(reply.status == 200);
  const auto events = reply.events();
  const ParsedJson role(events.front());
  CHECK(role.string("/object") == "chat.completion.chunk");
  CHECK(role.string("/choices/0/delta/role") == "assistant");
  CHECK(role.string("/choices/0/delta/content").empty());
  CHECK(role.is_null("/choices/0/finish_reason"));
  CHECK(role.is_null("/usage"));
  std::string text;
  for (size_t i = 1; i + 3 < events.size(); ++i) {
    const ParsedJson chunk(events[i]);
    CHECK_FALSE(chunk.has("/choices/0/delta/role"));
    CHECK(chunk.string("/id") == role.string("/id"));
    text += chunk.string("/choices/0/delta/content");
  }
  CHECK(text == "Hello, world!");
  const ParsedJson finish(events[events.size() - 3]);
  CHECK(finish.string("/choices/0/finish_reason") == "stop");
  CHECK_FALSE(finish.has("/choices/0/delta/content"));
  const ParsedJson usage(events[events.size() - 2]);
  CHECK(usage.size("/choices") == 0);
  CHECK(usage.integer("/usage/completion_tokens") == 14);
  CHECK(events.back() == "[DONE]");
}

TEST_CASE("Usage comes in every chunk when asked for") {
  TestServer server;
  const HttpReply reply = server.chat(
      body(R"("stream":true,"max_tokens":3,"stream_options":{"include_usage":true,"continuous_usage_stats":true})"));
  const auto events = reply.events();
  const ParsedJson second(events[1]);
  CHECK(second.integer("/usage/completion_tokens") == 1);
}

TEST_CASE("Chat logprobs are the same streamed and whole") {
  TestServer server;
  server.engine.on_submit = [](const sched::GenerateRequest&) { return ScriptedReply{.text = "a\xE2\x82\xAC"}; };
  const ParsedJson whole(server.chat(body(R"("logprobs":true,"top_logprobs":2)")).body);
  REQUIRE(whole.size("/choices/0/logprobs/content") == 5);
  CHECK(whole.string("/choices/0/logprobs/content/0/token") == "a");
  CHECK(whole.integer("/choices/0/logprobs/content/1/bytes/0") == 0xE2);
  CHECK(whole.number("/choices/0/logprobs/content/1/logprob") == -0.25);
  CHECK(whole.size("/choices/0/logprobs/content/0/top_logprobs") == 2);
  CHECK(whole.string("/choices/0/logprobs/content/0/top_logprobs/1/token") == "b");
  const HttpReply stream = server.chat(body(R"("logprobs":true,"top_logprobs":2,"stream":true)"));
  size_t tokens = 0;
  for (const std::string& event : stream.events()) {
    if (event == "[DONE]") continue;
    const ParsedJson chunk(event);
    if (!chunk.is_null("/choices/0/logprobs")) tokens += chunk.size("/choices/0/logprobs/content");
  }
  CHECK(tokens == 5);
}

TEST_CASE("n gives that many messages with a role chunk each") {
  TestServer server;
  const ParsedJson json(server.chat(body(R"("n":3)")).body);
  CHECK(json.size("/choices") == 3);
  CHECK(json.integer("/usage/completion_tokens") == 42);
  const HttpReply stream = server.chat(body(R"("n":3,"stream":true)"));
  size_t roles = 0;
  size_t finishes = 0;
  for (const std::string& event : stream.events()) {
    if (event == "[DONE]") continue;
    const ParsedJson chunk(event);
    if (chunk.has("/choices/0/delta/role")) ++roles;
    if (!chunk.is_null("/choices/0/finish_reason")) ++finishes;
  }
  CHECK(roles == 3);
  CHECK(finishes == 3);
}

TEST_CASE("The template gets its variables and its exception is a 400") {
  TestServer server;
  const ParsedJson rendered(server.post("/apply-template", body(R"("chat_template_kwargs":{"extra":"!"})")).body);
  CHECK(rendered.string("/prompt") == "[user]hi[assistant]!");
  const ParsedJson open(
      server
          .post("/apply-template",
                R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"Sure"}],)"
                R"("add_generation_prompt":false,"continue_final_message":true})")
          .body);
  CHECK(open.string("/prompt") == "[user]a[assistant]Sure");
  const HttpReply refused = server.chat(R"({"messages":[{"role":"user","content":"raise"}]})");
  CHECK(refused.status == 400);
  CHECK(ParsedJson(refused.body).string("/error/param") == "messages");
}

TEST_CASE("Template variables of a request override the defaults") {
  server::ServerOptions options;
  options.default_chat_template_kwargs = R"({"extra":"?","add_generation_prompt":false})";
  TestServer server(options);
  const auto rendered = [&](std::string_view more) {
    return ParsedJson(server.post("/apply-template", body(more)).body).string("/prompt");
  };
  CHECK(rendered("") == "[user]hi[assistant]?");
  CHECK(rendered(R"("chat_template_kwargs":{"extra":"!"})") == "[user]hi[assistant]!");
  CHECK(rendered(R"("chat_template_kwargs":{"add_generation_prompt":false})") == "[user]hi?");
  REQUIRE(server.chat(body("")).status == 200);
  const auto prompt = server.engine.seen().front().prompt;
  CHECK(std::string(prompt.begin(), prompt.end()) == "[user]hi[assistant]?");
}

TEST_CASE("The template of a request is used where it is allowed") {
  server::ServerOptions options;
  options.allow_request_chat_template = true;
  TestServer server(options);
  const ParsedJson json(server.post("/apply-template", body(R"("chat_template":"<{{ messages[0].content }}>")")).body);
  CHECK(json.string("/prompt") == "<hi>");
  const ParsedJson begun(server.post("/apply-template", body(R"("chat_template":"{{ bos_token }}!")")).body);
  CHECK(begun.string("/prompt") == "<bos>!");
  CHECK(server.chat(body(R"("chat_template":"{% if %}")")).status == 400);
}

TEST_CASE("A request may name a template of the model") {
  TestServer server;
  const ParsedJson json(server.post("/apply-template", body(R"("chat_template":"default")")).body);
  CHECK(json.string("/prompt") == "[user]hi[assistant]");
  const HttpReply refused = server.chat(body(R"("chat_template":"rag")"));
  CHECK(refused.status == 400);
  CHECK(ParsedJson(refused.body).string("/error/param") == "chat_template");
}

TEST_CASE("Documents are taken where the template shows them") {
  server::ServerOptions options;
  options.allow_request_chat_template = true;
  TestServer server(options);
  const std::string documents = R"("documents":[{"title":"t","text":"d1"},{"text":"d2"}])";
  const std::string shows = R"("chat_template":"{% for d in documents %}{{ d.text }};{% endfor %}",)";
  CHECK(ParsedJson(server.post("/apply-template", body(shows + documents)).body).string("/prompt") == "d1;d2;");
  const HttpReply refused = server.chat(body(documents));
  CHECK(refused.status == 400);
  CHECK(ParsedJson(refused.body).string("/error/param") == "documents");
  CHECK(server.chat(body(R"("documents":[])")).status == 200);
}

TEST_CASE("Refusals and empty tool results reach the template") {
  TestServer server;
  const auto prompt = [&](std::string_view messages) {
    const std::string request = fmt::format(R"({{"messages":{}}})", messages);
    return ParsedJson(server.post("/apply-template", request).body).string("/prompt");
  };
  CHECK(prompt(R"([{"role":"assistant","content":[{"type":"refusal","refusal":"I cannot."}]}])") ==
        "[assistant]I cannot.[assistant]");
  CHECK(prompt(R"([{"role":"assistant","content":null,"refusal":"No."}])") == "[assistant]No.[assistant]");
  CHECK(prompt(R"([{"role":"assistant","content":"a","refusal":null}])") == "[assistant]a[assistant]");
  CHECK(prompt(R"([{"role":"tool","tool_call_id":"c","content":null}])") == "[tool][assistant]");
  CHECK(prompt(R"([{"role":"tool","tool_call_id":"c"},{"role":"assistant"}])") == "[tool][assistant][assistant]");
}
