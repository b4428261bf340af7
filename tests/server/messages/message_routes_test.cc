#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>

#include "sched/plan/request.h"
#include "server/eventually.h"
#include "server/messages/message_server.h"
#include "server/schema_check.h"
#include "support/mentions.h"
#include "support/paths.h"
#include "support/skip.h"
#include "text/json_support.h"

using namespace millrace;
using namespace millrace::test;

namespace {

constexpr const char* kLook =
    R"("tools":[{"name":"look","input_schema":{"type":"object","properties":{"at":{"type":"string"}}}}])";
constexpr const char* kLookCall = "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\": \"it\"}}\n</tool_call>";

/// Checks a JSON text against the schema of `name` in /openapi.json.
void check_schema(const MessageServer& server, const std::string& text, const std::string& name) {
  const ParsedJson openapi(server.get("/openapi.json").body);
  const ParsedJson json(text);
  CAPTURE(text);
  CHECK(matches(json.at(""), openapi.at("/components/schemas/" + name), openapi.at("")));
}

std::string recorded_request(const std::string& name) {
  const auto path = shared_data_dir() / "agents" / (name + ".json");
  if (!std::filesystem::exists(path)) return {};
  std::string body = read_file(path);
  const size_t at = body.find("MODEL");
  return body.replace(at, 5, "fake");
}

}  // namespace

TEST_CASE("A message has the shape of Anthropic") {
  MessageServer server;
  server.engine.on_submit = [](const sched::GenerateRequest&) { return ScriptedReply{.cached_tokens = 4}; };
  const HttpReply reply = server.ask();
  REQUIRE(reply.status == 200);
  const ParsedJson json(reply.body);
  CHECK_THAT(json.string("/id"), Catch::StartsWith("msg_"));
  CHECK(json.string("/type") == "message");
  CHECK(json.string("/model") == "fake");
  CHECK(json.string("/content/0/text") == "Hello, world!");
  CHECK(json.string("/stop_reason") == "end_turn");
  CHECK(json.is_null("/stop_sequence"));
  const std::string prompt = "[user]hi[assistant]";
  CHECK(server.prompt() == prompt);
  CHECK(json.integer("/usage/cache_read_input_tokens") == 4);
  CHECK(json.integer("/usage/input_tokens") == static_cast<int64_t>(prompt.size()) - 4);
  CHECK(json.integer("/usage/output_tokens") == 14);
  check_schema(server, reply.body, "Message");
}

TEST_CASE("A streamed message equals the whole one however merged") {
  struct Case {
    const char* text;
    const char* more;
    std::vector<std::string> blocks;
    const char* stop_reason;
  };
  const std::string hm = std::string("<think>Let me\nsee.</think>I look.\n") + kLookCall + '\n' + kLookCall;
  const std::string between = std::string(kLookCall) + "\nSo.\n" + kLookCall + " Done.";
  const std::string tools = kLook;
  const std::string stop = R"("stop_sequences":["END"])";
  const std::vector<Case> cases = {
      {"Gr\xC3\xBC\xC3\x9F"
       "e \xE2\x82\xAC",
       "",
       {"text: Gr\xC3\xBC\xC3\x9F"
        "e \xE2\x82\xAC"},
       "end_turn"},
      {"abc EN END def", stop.c_str(), {"text: abc EN "}, "stop_sequence"},
      {"<think>so</think>\nyes", "", {"thinking: so", "text: yes"}, "end_turn"},
      {hm.c_str(),
       tools.c_str(),
       {"thinking: Let me\nsee.", "text: I look.", R"(tool_use look: {"at":"it"})", R"(tool_use look: {"at":"it"})"},
       "tool_use"},
      {between.c_str(),
       tools.c_str(),
       {R"(tool_use look: {"at":"it"})", "text: \nSo.", R"(tool_use look: {"at":"it"})", "text:  Done."},
       "tool_use"},
      {"abcdef", R"("max_tokens":3)", {"text: abc"}, "max_tokens"},
      {"", "", {"text: "}, "end_turn"},
  };
  server::ServerOptions options;
  options.detect_reasoning_format = false;
  options.reasoning_format = text::ReasoningFormat::kThink;
  MessageServer server(kToolTemplate, options);
  for (const Case& each : cases) {
    CAPTURE(each.text);
    server.answer(each.text);
    const HttpReply whole_reply = server.ask(each.more);
    const StreamedMessage whole = read_message(whole_reply);
    CHECK(whole.blocks == each.blocks);
    CHECK(whole.stop_reason == each.stop_reason);
    check_schema(server, whole_reply.body, "Message");
    for (const size_t per_event : {1u, 2u, 3u, 7u, 1000u}) {
      CAPTURE(per_event);
      server.answer(each.text, per_event);
      const HttpReply reply =
          server.ask(fmt::format(R"({}{}"stream":true)", each.more, std::string_view(each.more).empty() ? "" : ","));
      const StreamedMessage streamed = join_events(reply);
      CHECK(streamed.blocks == whole.blocks);
      CHECK(streamed.stop_reason == whole.stop_reason);
      CHECK(streamed.stop_sequence == whole.stop_sequence);
      CHECK(streamed.output_tokens == whole.output_tokens);
      CHECK(streamed.types[1] == "ping");
      CHECK(streamed.types.back() == "message_stop");
      if (per_event != 7) continue;
      for (const std::string& event : reply.events()) check_schema(server, event, "MessageEvent");
    }
  }
}

TEST_CASE("A call that is cut off says why") {
  MessageServer server;
  server.answer(kLookCall);
  const StreamedMessage cut = read_message(server.ask(fmt::format(R"({},"max_tokens":50)", kLook)));
  CHECK(cut.stop_reason == "max_tokens");
  CHECK(cut.blocks == std::vector<std::string>{R"(tool_use look: {"at":""})"});
  const StreamedMessage stopped = read_message(server.ask(fmt::format(R"({},"stop_sequences":["\"it"])", kLook)));
  CHECK(stopped.stop_reason == "stop_sequence");
  CHECK(stopped.stop_sequence == "\"it");
}

TEST_CASE("A message fills the context at most") {
  MessageServer server;
  server.engine.info.context_length = 64;
  server.engine.on_submit = [](const sched::GenerateRequest&) { return ScriptedReply{.ends_with_eos = false}; };
  const StreamedMessage filled = read_message(server.ask(R"("max_tokens":32000)"));
  CHECK(filled.stop_reason == "model_context_window_exceeded");
  CHECK(filled.output_tokens == 64 - 19);
  CHECK(server.engine.seen().back().max_tokens == 64 - 19);
  CHECK(read_message(server.ask(R"("max_tokens":45)")).stop_reason == "max_tokens");
  const std::string long_body = fmt::format(
      R"({{"model":"fake","max_tokens":1,"messages":[{{"role":"user","content":"{}"}}]}})", std::string(47, 'x'));
  const HttpReply refused = server.post("/v1/messages", long_body);
  CHECK(refused.status == 400);
  CHECK(ParsedJson(refused.body).string("/error/message") == "prompt is too long: 64 tokens > 63 maximum");
  CHECK(ParsedJson(server.post("/v1/messages/count_tokens", long_body).body).integer("/input_tokens") == 64);
}

TEST_CASE("Errors of messages have the types of Anthropic") {
  server::ServerOptions options;
  options.api_keys = {"secret"};
  MessageServer server(kToolTemplate, options);
  constexpr const char* kGood = R"({"model":"fake","max_tokens":9,"messages":[{"role":"user","content":"a"}]})";
  const auto check = [&](unsigned status, const char* type, const HttpReply& reply) {
    CAPTURE(reply.body);
    CHECK(reply.status == status);
    const ParsedJson json(reply.body);
    CHECK(json.string("/type") == "error");
    CHECK(json.string("/error/type") == type);
    CHECK_FALSE(json.string("/error/message").empty());
  };
  constexpr const char* kKey = "x-api-key: secret\r\n";
  CHECK(server.post("/v1/messages?beta=true", kGood, kKey).status == 200);
  CHECK(server.post("/v1/messages", kGood, "Authorization: Bearer secret\r\n").status == 200);
  CHECK(server.post("/v1/messages", kGood, "Authorization: Bearer other\r\nX-Api-Key: secret\r\n").status == 200);
  check(401, "authentication_error", server.post("/v1/messages", kGood));
  check(401, "authentication_error", server.post("/v1/messages", kGood, "x-api-key: wrong\r\n"));
  check(401, "authentication_error", server.post("/v1/messages/count_tokens", kGood, "x-api-key: \r\n"));
  check(400, "invalid_request_error", server.post("/v1/messages", "{}", kKey));
  check(400, "invalid_request_error", server.post("/v1/messages/count_tokens", "{", kKey));
  const std::string unknown = std::string(kGood).replace(10, 4, "none");
  check(404, "not_found_error", server.post("/v1/messages", unknown, kKey));
  check(404, "not_found_error", server.post("/v1/messages/count_tokens", unknown, kKey));
  check(405, "invalid_request_error", server.get("/v1/messages", kKey));
  check(415, "invalid_request_error",
        server.post("/v1/messages", kGood, "x-api-key: secret\r\nContent-Encoding: gzip\r\n"));
  for (const auto& [code, status, type] :
       {std::tuple{ErrorCode::kExhausted, 429u, "rate_limit_error"},
        std::tuple{ErrorCode::kUnavailable, 503u, "overloaded_error"},
        std::tuple{ErrorCode::kTimeout, 504u, "timeout_error"}, std::tuple{ErrorCode::kInternal, 500u, "api_error"}}) {
    const ErrorCode fault = code;
    server.engine.on_submit = [fault](const sched::GenerateRequest&) -> Result<ScriptedReply> {
      return make_error(fault, "the queue is full");
    };
    const HttpReply reply = server.post("/v1/messages", kGood, kKey);
    check(status, type, reply);
    CHECK(reply.header("Retry-After").empty() == (status == 504 || status == 500));
  }
}

TEST_CASE("A stream that fails midway ends with an error event") {
  MessageServer server;
  server.engine.on_submit = [](const sched::GenerateRequest&) {
    return ScriptedReply{.text = "ab", .error = make_error(ErrorCode::kUnavailable, "the ring broke")};
  };
  const HttpReply reply = server.ask(R"("stream":true)");
  const StreamedMessage message = join_events(reply);
  CHECK(message.types.back() == "error");
  CHECK(message.error == "overloaded_error");
  CHECK(server.ask().status == 503);
}

TEST_CASE("An idle stream of a message gets pings") {
  server::ServerOptions options;
  options.comment_interval = std::chrono::milliseconds(20);
  MessageServer server(kToolTemplate, options);
  server.engine.on_submit = [](const sched::GenerateRequest&) { return ScriptedReply{.text = "", .hangs = true}; };
  Client client(server.port());
  REQUIRE(client.send(post_bytes("/v1/messages", R"({"model":"fake","max_tokens":9,"stream":true,)"
                                                 R"("messages":[{"role":"user","content":"a"}]})")));
  REQUIRE(client.read_until("event: message_start"));
  for (int i = 0; i < 3; ++i) REQUIRE(client.read_until("event: ping\ndata: {\"type\":\"ping\"}\n\n"));
}

TEST_CASE("The count of tokens is what a message is charged") {
  MessageServer server;
  const std::string body =
      fmt::format(R"({{"model":"fake","max_tokens":9,"system":"s","messages":[{{"role":"user","content":"a"}}],{},)"
                  R"("tool_choice":{{"type":"tool","name":"look"}}}})",
                  kLook);
  const ParsedJson counted(server.post("/v1/messages/count_tokens?beta=true", body).body);
  const ParsedJson message(server.post("/v1/messages", body).body);
  CHECK(counted.integer("/input_tokens") == message.integer("/usage/input_tokens"));
  CHECK(counted.integer("/input_tokens") == static_cast<int64_t>(server.prompt().size()));
}

TEST_CASE("Thinking and effort reach the template") {
  MessageServer server;
  (void)server.ask(R"("thinking":{"type":"disabled"})");
  // The template prints any effort, so it gets the lowest that models know.
  CHECK_THAT(server.prompt(), Catch::EndsWith("[assistant]<think></think>(low)"));
  (void)server.ask(R"("thinking":{"type":"adaptive"},"output_config":{"effort":"high"})");
  CHECK_THAT(server.prompt(), Catch::EndsWith("[assistant]<think>(high)"));
  (void)server.ask();
  CHECK(server.prompt() == "[user]hi[assistant]");
}

TEST_CASE("A message that has begun is continued") {
  MessageServer server;
  server.answer(" and on");
  const HttpReply reply =
      server.post("/v1/messages", R"({"model":"fake","max_tokens":9,"messages":[{"role":"user","content":"a"},)"
                                  R"({"role":"assistant","content":"It goes on"}]})");
  CHECK(server.prompt() == "[user]a[assistant]It goes on");
  CHECK(read_message(reply).blocks == std::vector<std::string>{"text:  and on"});
}

TEST_CASE("Models are listed in the dialect of the client") {
  server::ServerOptions options;
  options.other_model_names = {"claude-small"};
  MessageServer server(kToolTemplate, options);
  constexpr const char* kVersion = "anthropic-version: 2023-06-01\r\n";
  const HttpReply own = server.get("/v1/models?limit=1000", kVersion);
  const ParsedJson list(own.body);
  CHECK(list.string("/data/0/type") == "model");
  CHECK(list.string("/data/1/id") == "claude-small");
  CHECK(list.string("/data/1/created_at").size() == std::string_view("2026-01-01T00:00:00Z").size());
  CHECK(list.string("/first_id") == "fake");
  CHECK(list.string("/last_id") == "claude-small");
  CHECK(list.at("/has_more").is_bool());
  check_schema(server, own.body, "MessageModelList");
  const HttpReply one = server.get("/v1/models/claude-small", kVersion);
  check_schema(server, one.body, "MessageModel");
  const HttpReply unknown = server.get("/v1/models/none", kVersion);
  CHECK(unknown.status == 404);
  CHECK(ParsedJson(unknown.body).string("/error/type") == "not_found_error");
  CHECK(ParsedJson(server.get("/v1/models").body).string("/object") == "list");
}

TEST_CASE("HEAD of an unknown path is 404 without a body") {
  const MessageServer server;
  Client client(server.port());
  REQUIRE(client.send("HEAD /api/hello HTTP/1.1\r\nHost: x\r\n\r\n"));
  CHECK(client.read(true).status == 404);
  CHECK(client.get("/health").status == 200);
}

TEST_CASE("The second turn of Claude Code begins with the first") {
  const std::string first = recorded_request("claude_code_turn1");
  const std::string second = recorded_request("claude_code_turn2");
  if (first.empty()) SKIP_TEST("the shared data folder is absent");
  MessageServer server;
  REQUIRE(server.post("/v1/messages?beta=true", first).status == 200);
  const std::string prompt = server.prompt();
  CHECK(prompt.find("billing") == std::string::npos);
  CHECK(prompt.find("DeferredToolPlaceholder") == std::string::npos);
  REQUIRE(server.post("/v1/messages?beta=true", second).status == 200);
  CHECK_THAT(server.prompt(), Catch::StartsWith(prompt.substr(0, prompt.rfind("[assistant]")) + "[assistant]"));
  // The attribution of another session, as Claude Code changes it.
  std::string other = first;
  other.replace(other.find("2.1.332.1c9"), 11, "2.1.332.abc");
  REQUIRE(server.post("/v1/messages?beta=true", other).status == 200);
  CHECK(server.prompt() == prompt);
}

TEST_CASE("Real templates keep the first turn of Claude Code") {
  const auto folder = shared_data_dir() / "chat_templates";
  const std::string first = recorded_request("claude_code_turn1");
  const std::string second = recorded_request("claude_code_turn2");
  if (first.empty() || !std::filesystem::exists(folder)) SKIP_TEST("the shared data folder is absent");
  size_t count = 0;
  for (const auto& model : std::filesystem::directory_iterator(folder)) {
    CAPTURE(model.path().string());
    const auto chat_template = text::ChatTemplate::load(model.path()).value();
    if (!chat_template->supports_tools() || !chat_template->tool_format()) continue;
    const MessageServer server(chat_template);
    const HttpReply reply = server.post("/v1/messages", first);
    INFO(reply.body);
    REQUIRE(reply.status == 200);
    const std::string prompt = server.prompt();
    const HttpReply next = server.post("/v1/messages", second);
    INFO(next.body);
    REQUIRE(next.status == 200);
    const std::string next_prompt = server.prompt();
    // This one shows the system prompt with the last message alone, if that is the user's.
    if (model.path().filename() == "mistral-7b-instruct-v0.3") continue;
    const auto common = std::ranges::mismatch(prompt, next_prompt).in1 - prompt.begin();
    CHECK(static_cast<double>(common) >= 0.95 * static_cast<double>(prompt.size()));
    ++count;
  }
  CHECK(count >= 3);
}
