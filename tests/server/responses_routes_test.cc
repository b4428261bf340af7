#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "sched/plan/request.h"
#include "server/recorded.h"
#include "server/schema_check.h"
#include "server/responses_server.h"
#include "support/skip.h"

using namespace millrace;
using namespace millrace::test;

TEST_CASE("A response has the shape of OpenAI") {
  const ResponsesServer server({.cached_tokens = 3});
  const ParsedJson json = server.ask(R"("metadata":{"a":"b"},"temperature":0.5)");
  CHECK_THAT(json.string("/id"), Catch::StartsWith("resp_"));
  CHECK(json.string("/object") == "response");
  CHECK(json.string("/status") == "completed");
  CHECK(json.string("/output/0/content/0/text") == "Hello, world!");
  CHECK(json.string("/output/0/status") == "completed");
  CHECK(json.string("/metadata/a") == "b");
  CHECK(json.number("/temperature") == 0.5);
  CHECK(json.integer("/usage/input_tokens_details/cached_tokens") == 3);
  CHECK(json.integer("/usage/output_tokens_details/reasoning_tokens") == 0);
  CHECK(json.integer("/usage/total_tokens") ==
        json.integer("/usage/input_tokens") + json.integer("/usage/output_tokens"));
  const ParsedJson openapi(server.get("/openapi.json").body);
  CHECK(matches(json.at(""), openapi.at("/components/schemas/ResponseObject"), openapi.at("")));
}

TEST_CASE("A stream of text has the events of OpenAI") {
  const ResponsesServer server;
  const auto events = server.stream();
  CHECK(types_of(events) == std::vector<std::string>{"created", "in_progress", "output_item.added",
                                                     "content_part.added", "output_text.delta", "output_text.done",
                                                     "content_part.done", "output_item.done", "completed"});
  check_stream(events);
  const ParsedJson openapi(server.get("/openapi.json").body);
  for (const std::string& event : events) {
    INFO(event);
    const ParsedJson json(event);
    CHECK(matches(json.at(""), openapi.at("/components/schemas/ResponseEvent"), openapi.at("")));
  }
}

TEST_CASE("Reasoning and calls are items at every cut") {
  for (const size_t cut : {1, 2, 3, 5, 7, 11, 50, 1000}) {
    INFO(cut);
    const ResponsesServer server({.text = kThinkAndCall, .tokens_per_event = cut});
    const auto events = server.stream(kItemTools);
    CHECK(types_of(events) ==
          std::vector<std::string>{
              "created", "in_progress", "output_item.added", "content_part.added", "reasoning_text.delta",
              "reasoning_text.done", "content_part.done", "output_item.done", "output_item.added",
              "function_call_arguments.delta", "function_call_arguments.done", "output_item.done", "output_item.added",
              "function_call_arguments.delta", "function_call_arguments.done", "output_item.done", "completed"});
    check_stream(events);
    const ParsedJson last(events.back());
    CHECK(last.string("/response/output/0/content/0/text") == "look first");
    CHECK(last.string("/response/output/1/name") == "look");
    CHECK(last.string("/response/output/1/arguments") == R"({"at": "it"})");
    CHECK_FALSE(last.has("/response/output/1/namespace"));
    CHECK(last.string("/response/output/2/name") == "go");
    CHECK(last.string("/response/output/2/namespace") == "ns");
    CHECK(last.string("/response/output/1/call_id") != last.string("/response/output/2/call_id"));
    CHECK(last.integer("/response/usage/output_tokens_details/reasoning_tokens") > 0);
  }
}

namespace {

/// Checks that a whole response has the items of its stream, which gets `cut` tokens at a time.
void check_same_items(const std::string& text, size_t cut) {
  INFO(cut << ": " << text);
  const ResponsesServer server({.text = text, .tokens_per_event = cut});
  const ParsedJson whole = server.ask(kItemTools);
  const auto events = server.stream(kItemTools);
  check_stream(events);
  const ParsedJson last(events.back());
  REQUIRE(whole.size("/output") == last.size("/response/output"));
  for (size_t i = 0; i < whole.size("/output"); ++i) {
    for (const char* member : {"type", "content/0/text", "name", "arguments", "input", "namespace", "status"}) {
      const std::string pointer = fmt::format("/output/{}/{}", i, member);
      const std::string in_stream = "/response" + pointer;
      REQUIRE(whole.has(pointer) == last.has(in_stream));
      if (whole.has(pointer)) CHECK(whole.string(pointer) == last.string(in_stream));
    }
  }
}

}  // namespace

TEST_CASE("A whole response has the items of its stream") {
  for (const std::string& text :
       {std::string(kThinkAndCall), "I look.\n" + call("look", "{}"), call("patch", R"({"input": "a\nb"})"),
        std::string(" \n"), std::string(),
        call("look", "{}") + "\nSo.\n" + call("look", "{}") + call("look", "{}") + " Done."}) {
    for (const size_t cut : {1, 9, 60, 1000}) check_same_items(text, cut);
  }
}

TEST_CASE("The call of a custom tool has a text") {
  for (const size_t cut : {1, 3, 1000}) {
    const ResponsesServer server({.text = call("patch", R"({"input": "a\n\"b\""})"), .tokens_per_event = cut});
    const auto events = server.stream(kItemTools);
    CHECK(types_of(events) == std::vector<std::string>{"created", "in_progress", "output_item.added",
                                                       "custom_tool_call_input.delta", "custom_tool_call_input.done",
                                                       "output_item.done", "completed"});
    check_stream(events);
    CHECK(ParsedJson(events.back()).string("/response/output/0/input") == "a\n\"b\"");
    CHECK(ParsedJson(events.back()).string("/response/output/0/name") == "patch");
  }
}

TEST_CASE("An output cut by its limit is incomplete") {
  const ResponsesServer server({.text = "Hello", .ends_with_eos = false});
  const auto events = server.stream(R"("max_output_tokens":3)");
  check_stream(events);
  const ParsedJson last(events.back());
  CHECK(last.string("/type") == "response.incomplete");
  CHECK(last.string("/response/status") == "incomplete");
  CHECK(last.string("/response/incomplete_details/reason") == "max_output_tokens");
  CHECK(last.string("/response/output/0/status") == "incomplete");
  CHECK(last.is_null("/response/completed_at"));
  CHECK(server.ask(R"("max_output_tokens":3)").string("/status") == "incomplete");
}

TEST_CASE("A failure within a stream is a failed response") {
  const ResponsesServer server({.text = "par", .error = make_error(ErrorCode::kInternal, "the ring broke")});
  const auto events = server.stream();
  CHECK(types_of(events) == std::vector<std::string>{"created", "in_progress", "output_item.added",
                                                     "content_part.added", "output_text.delta", "failed"});
  const ParsedJson last(events.back());
  CHECK(last.string("/response/status") == "failed");
  CHECK(last.string("/response/error/code") == "server_error");
  CHECK(last.string("/response/output/0/status") == "incomplete");
  CHECK_FALSE(last.has("/error"));
  CHECK(server.respond("").status == 500);
}

TEST_CASE("A prompt that is too long fails the stream with its code") {
  ResponsesServer server;
  server.engine.info.context_length = 16;
  const auto events = server.stream(R"("input":"a text of more than sixteen tokens")");
  CHECK(types_of(events) == std::vector<std::string>{"created", "in_progress", "failed"});
  CHECK(ParsedJson(events.back()).string("/response/error/code") == "context_length_exceeded");
  const HttpReply reply = server.respond(R"("input":"a text of more than sixteen tokens")");
  CHECK(reply.status == 400);
  const ParsedJson json(reply.body);
  CHECK(json.string("/error/code") == "context_length_exceeded");
  CHECK(json.string("/error/param") == "input");
}

TEST_CASE("Truncation drops the oldest messages but the system one") {
  ResponsesServer server;
  std::string items = R"({"role":"system","content":"S"})";
  for (int i = 0; i < 8; ++i) {
    items += fmt::format(R"(,{{"role":"user","content":"{0}{0}{0}{0}"}},{{"role":"assistant","content":"a{0}"}})", i);
  }
  server.engine.info.context_length = 60;
  const std::string input = fmt::format(R"("input":[{},{{"role":"user","content":"last"}}])", items);
  CHECK(server.respond(input).status == 400);
  CHECK(server.respond(input + R"(,"truncation":"auto")").status == 200);
  CHECK(server.prompt() == "[system]S[user]7777[assistant]a7[user]last[assistant]");
  server.engine.info.context_length = 20;
  CHECK(server.respond(input + R"(,"truncation":"auto")").status == 400);
}

TEST_CASE("A response continues a stored one") {
  const ResponsesServer server({.text = kThinkAndCall});
  const ParsedJson first = server.ask(fmt::format(R"("instructions":"I",{})", kItemTools));
  const std::string prompt = server.prompt();
  const std::string answered = fmt::format(
      R"("previous_response_id":"{}",{},"input":[{{"type":"function_call_output","call_id":"{}","output":"R"}}])",
      first.string("/id"), kItemTools, first.string("/output/1/call_id"));
  const ParsedJson second = server.ask(answered);
  CHECK(second.string("/previous_response_id") == first.string("/id"));
  CHECK_THAT(prompt, Catch::Contains("[system]I[user]hi"));
  const std::string next = server.prompt();
  CHECK_THAT(next, Catch::Contains("][user]hi[assistant]<think>\nlook first\n</think>\n\n<tool_call>\n{\"name\": "
                                   "\"look\", \"arguments\": {\"at\": \"it\"}}\n</tool_call>"));
  CHECK_THAT(next, Catch::EndsWith("[tool]R[assistant]"));
  CHECK_THAT(next, !Catch::Contains("[system]"));
  const ParsedJson items(server.get(fmt::format("/v1/responses/{}/input_items?order=asc", second.string("/id"))).body);
  CHECK(items.size("/data") == 5);
  CHECK(items.string("/data/1/id") == first.string("/output/0/id"));
  const std::string reference =
      fmt::format(R"("input":[{{"role":"user","content":"x"}},{{"type":"item_reference","id":"{}"}}])",
                  first.string("/output/0/id"));
  (void)server.ask(reference);
  CHECK_THAT(server.prompt(), Catch::Contains("look first"));
}

TEST_CASE("A stored response is fetched replayed and deleted") {
  const ResponsesServer server;
  const auto events = server.stream();
  const std::string id = ParsedJson(events.back()).string("/response/id");
  const std::string path = "/v1/responses/" + id;
  const HttpReply fetched = server.get(path);
  REQUIRE(fetched.status == 200);
  CHECK(simdjson::minify(ParsedJson(fetched.body).at("")) ==
        simdjson::minify(ParsedJson(events.back()).at("/response")));
  CHECK(server.get(path + "?stream=true").events() == events);
  const auto rest = server.get(path + "?stream=true&starting_after=3").events();
  CHECK(rest == std::vector<std::string>(events.begin() + 4, events.end()));
  CHECK(server.get(path + "?stream=true&starting_after=x").status == 400);
  CHECK(server.request("POST", path + "/cancel").status == 400);
  const HttpReply deleted = server.request("DELETE", path);
  CHECK(ParsedJson(deleted.body).string("/id") == id);
  for (const char* method : {"GET", "DELETE"}) CHECK(server.request(method, path).status == 404);
  CHECK(server.request("POST", path + "/cancel").status == 404);
  CHECK(server.get(path + "/input_items").status == 404);
  CHECK(server.respond(fmt::format(R"("previous_response_id":"{}")", id)).status == 400);
}

TEST_CASE("A response is stored only where that is wanted") {
  const ResponsesServer server;
  CHECK(server.get("/v1/responses/" + server.ask(R"("store":false)").string("/id")).status == 404);
  server::ServerOptions options;
  options.response_store_bytes = 0;
  const ResponsesServer forgetful({}, options);
  CHECK(forgetful.get("/v1/responses/" + forgetful.ask().string("/id")).status == 404);
  CHECK(forgetful.respond(R"("background":true)").status == 400);
}

TEST_CASE("Input items are listed in pages") {
  const ResponsesServer server;
  std::string items;
  for (int i = 0; i < 5; ++i) items += fmt::format(R"({}{{"role":"user","content":"{}"}})", i == 0 ? "" : ",", i);
  const std::string path =
      fmt::format("/v1/responses/{}/input_items", server.ask(fmt::format(R"("input":[{}])", items)).string("/id"));
  const ParsedJson newest(server.get(path + "?limit=2").body);
  CHECK(newest.string("/data/0/content") == "4");
  CHECK(newest.size("/data") == 2);
  CHECK(newest.at("/has_more").get_bool().value());
  const ParsedJson next(server.get(fmt::format("{}?limit=100&after={}", path, newest.string("/last_id"))).body);
  CHECK(next.size("/data") == 3);
  CHECK_FALSE(next.at("/has_more").get_bool().value());
  CHECK(next.string("/data/0/content") == "2");
  const ParsedJson oldest(server.get(path + "?order=asc").body);
  CHECK(oldest.string("/data/0/content") == "0");
  CHECK(oldest.string("/first_id") == next.string("/last_id"));
  for (const char* query : {"?limit=0", "?limit=101", "?limit=x", "?order=up", "?after=msg_none"}) {
    CHECK(server.get(path + query).status == 400);
  }
}

TEST_CASE("A response in the background is polled until it ends") {
  const ResponsesServer server({.delay = std::chrono::milliseconds(5)});
  const ParsedJson queued = server.ask(R"("background":true)");
  CHECK(queued.string("/status") == "queued");
  CHECK(queued.at("/background").get_bool().value());
  const std::string path = "/v1/responses/" + queued.string("/id");
  CHECK(server.request("DELETE", path).status == 409);
  CHECK(ParsedJson(server.get(path + "/input_items").body).size("/data") == 1);
  const auto events = server.get(path + "?stream=true").events();
  check_stream(events);
  CHECK(ParsedJson(events.back()).string("/type") == "response.completed");
  const ParsedJson done(server.get(path).body);
  CHECK(done.string("/status") == "completed");
  CHECK(done.string("/output/0/content/0/text") == "Hello, world!");
  CHECK(server.get(path + "?stream=true").events() == events);
  CHECK(ParsedJson(server.request("POST", path + "/cancel").body).string("/status") == "completed");
}

TEST_CASE("A response in the background is streamed at once") {
  const ResponsesServer server;
  const auto events = server.stream(R"("background":true)");
  check_stream(events);
  CHECK(ParsedJson(events.back()).string("/type") == "response.completed");
}

TEST_CASE("A response in the background is cancelled") {
  const ResponsesServer server({.hangs = true});
  const std::string path = "/v1/responses/" + server.ask(R"("background":true)").string("/id");
  REQUIRE(server.engine.wait_until_live(1));
  const HttpReply cancelled = server.request("POST", path + "/cancel");
  REQUIRE(cancelled.status == 200);
  CHECK(ParsedJson(cancelled.body).string("/status") == "cancelled");
  CHECK(server.engine.wait_until_idle());
  CHECK(ParsedJson(server.get(path).body).string("/status") == "cancelled");
}

TEST_CASE("A failure in the background is found in the response") {
  ResponsesServer refusing;
  refusing.engine.on_submit = [](const sched::GenerateRequest&) -> Result<ScriptedReply> {
    return make_error(ErrorCode::kExhausted, "the queue is full");
  };
  const std::string path = "/v1/responses/" + refusing.ask(R"("background":true)").string("/id");
  const auto events = refusing.get(path + "?stream=true").events();
  CHECK(ParsedJson(events.back()).string("/type") == "response.failed");
  CHECK(ParsedJson(refusing.get(path).body).string("/status") == "failed");
  CHECK(ParsedJson(refusing.get(path).body).string("/error/code") == "rate_limit_exceeded");
}

TEST_CASE("A server that stops ends what runs in the background") {
  auto server = std::make_unique<ResponsesServer>(ScriptedReply{.hangs = true});
  (void)server->ask(R"("background":true)");
  REQUIRE(server->engine.wait_until_live(1));
  server->front->stop(std::chrono::milliseconds(0));
  CHECK(server->engine.wait_until_idle());
}

TEST_CASE("Tokens of a request are counted without generating") {
  const ResponsesServer server;
  const HttpReply reply = server.post("/v1/responses/input_tokens", ResponsesServer::body(""));
  const ParsedJson json(reply.body);
  CHECK(json.string("/object") == "response.input_tokens");
  CHECK(json.integer("/input_tokens") == server.ask().integer("/usage/input_tokens"));
  CHECK(server.engine.seen().size() == 1);
}

TEST_CASE("A WebSocket on the route of responses is refused at once") {
  const ResponsesServer server;
  CHECK(server.request("GET", "/v1/responses", "Connection: Upgrade\r\nUpgrade: websocket\r\n").status == 426);
  const HttpReply plain = server.request("GET", "/v1/responses");
  CHECK(plain.status == 405);
  CHECK(plain.header("Allow") == "POST, OPTIONS");
}

TEST_CASE("Tokens of a text have their logprobs") {
  const ResponsesServer server({.text = "ab"});
  const ParsedJson json = server.ask(R"("include":["message.output_text.logprobs"],"top_logprobs":2)");
  REQUIRE(json.size("/output/0/content/0/logprobs") >= 2);
  CHECK(json.string("/output/0/content/0/logprobs/0/token") == "a");
  CHECK(json.size("/output/0/content/0/logprobs/0/top_logprobs") == 2);
  CHECK(server.ask().size("/output/0/content/0/logprobs") == 0);
}

TEST_CASE("The second turn of an agent begins with the first") {
  if (read_recorded("codex_turn1").empty()) SKIP_TEST("shared/data/agents is absent");
  const ResponsesServer server;
  std::vector<std::string> prompts;
  for (const char* name : {"codex_turn1", "codex_turn2"}) {
    std::string body = read_recorded(name);
    for (size_t at = body.find("\"MODEL\""); at != std::string::npos; at = body.find("\"MODEL\"")) {
      body.replace(at, 7, "\"fake\"");
    }
    std::string with_template = R"({"chat_template":)";
    append_json_string(with_template, kItemTemplate);
    const HttpReply reply = server.post("/v1/responses", with_template + "," + body.substr(body.find('{') + 1));
    REQUIRE(reply.status == 200);
    prompts.push_back(server.prompt());
  }
  CHECK(prompts[1].starts_with(prompts[0]));
  CHECK_THAT(prompts[0], Catch::Contains("multi_agent_v1__close_agent") && !Catch::Contains("web_search"));
}
