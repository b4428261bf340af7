#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "base/json.h"
#include "server/responses_server.h"
#include "server/schema_check.h"

using namespace millrace;
using namespace millrace::test;

TEST_CASE("Flat tools and calls are shown as nested ones") {
  const ResponsesServer server({.text = "Done."});
  const auto prompt_of = [&](std::string_view more, std::string_view messages = R"([{"role":"user","content":"q"}])") {
    std::string body = R"({"chat_template":)";
    append_json_string(body, kItemTemplate);
    const HttpReply reply = server.chat(fmt::format(R"({},"messages":{},{}}})", body, messages, more));
    INFO(reply.body);
    CHECK(reply.status == 200);
    return server.prompt();
  };
  // Cursor sends both forms in one list.
  const std::string nested = prompt_of(
      R"("tools":[{"type":"function","function":{"name":"look","description":"d","parameters":{"type":"object"}}},)"
      R"({"type":"custom","custom":{"name":"patch","format":{"type":"grammar","grammar":{"syntax":"regex",)"
      R"("definition":"[ab]+"}}}}],"tool_choice":{"type":"function","function":{"name":"look"}})");
  for (const char* type : {R"("type":"function",)", R"("type":null,)", ""}) {
    CHECK(prompt_of(fmt::format(R"("tools":[{{{}"name":"look","description":"d","parameters":{{"type":"object"}}}},)"
                                R"({{"type":"custom","name":"patch","format":{{"type":"grammar","syntax":"regex",)"
                                R"("definition":"[ab]+"}}}}],)"
                                R"("tool_choice":{{{}"name":"look"}})",
                                type, type)) == nested);
    CHECK(server.engine.seen().back().grammar != nullptr);
  }
  const auto history = [](std::string_view call) {
    return fmt::format(R"([{{"role":"assistant","content":[],"tool_calls":[{}]}},)"
                       R"({{"role":"tool","tool_call_id":"c","content":"ok"}}])",
                       call);
  };
  constexpr const char* tools = R"("tools":[{"type":"function","function":{"name":"look"}}])";
  const std::string called =
      prompt_of(tools, history(R"({"id":"c","type":"function","function":{"name":"look","arguments":"{\"at\":1}"}})"));
  CHECK_THAT(called, Catch::Contains(R"("arguments": {"at": 1})"));
  for (const char* call : {R"({"id":"c","type":null,"function":{"name":"look","arguments":"{\"at\":1}"}})",
                           R"({"id":"c","function":{"name":"look","arguments":"{\"at\":1}"}})",
                           R"({"id":"c","type":"function","name":"look","arguments":"{\"at\":1}"})"}) {
    CHECK(prompt_of(tools, history(call)) == called);
  }
}

TEST_CASE("A chat may be asked for in the form of responses") {
  const ResponsesServer server({.text = call("look", R"({"at":"it"})")});
  const std::string request = ResponsesServer::body(fmt::format(
      R"("model":"fake","input":[{{"role":"system","content":"S"}},{{"role":"user","content":[{{"type":"input_text",)"
      R"("text":"Q"}}]}},{{"type":"function_call","call_id":"c","name":"look","arguments":"{{}}"}},)"
      R"({{"type":"function_call_output","call_id":"c","output":"R"}}],{},"stream":true,"store":false,)"
      R"("stream_options":{{"include_usage":true}},"reasoning":{{"effort":"medium"}},"include":[])",
      kItemTools));
  const HttpReply reply = server.post("/v1/chat/completions", request);
  INFO(reply.body);
  REQUIRE(reply.status == 200);
  (void)server.post("/v1/responses", request);
  CHECK(server.engine.seen()[0].prompt == server.engine.seen()[1].prompt);
  const ParsedJson openapi(server.get("/openapi.json").body);
  const auto events = reply.events();
  REQUIRE(events.size() > 3);
  CHECK(events.back() == "[DONE]");
  std::string arguments;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const ParsedJson chunk(events[i]);
    CHECK(matches(chunk.at(""), openapi.at("/components/schemas/ChatCompletionChunk"), openapi.at("")));
    const char* pointer = "/choices/0/delta/tool_calls/0/function/arguments";
    if (chunk.has(pointer)) arguments += chunk.string(pointer);
  }
  CHECK(arguments == R"({"at":"it"})");
  CHECK(ParsedJson(events[events.size() - 2]).has("/usage/prompt_tokens"));
  const auto status_of = [&](const char* body) { return server.post("/v1/chat/completions", body).status; };
  CHECK(status_of(R"({"input":5})") == 400);
  CHECK(status_of(R"({"input":"x","background":true})") == 400);
  CHECK(status_of(R"({"input":"x","previous_response_id":"resp_1"})") == 400);
  CHECK(status_of(R"({"input":[{"role":"user","content":"x"},{"type":"compaction_trigger"}]})") == 400);
}

namespace {

std::string chat_prompt(const ResponsesServer& server, std::string_view more) {
  std::string body = R"({"chat_template":)";
  append_json_string(body, kItemTemplate);
  const HttpReply reply = server.chat(fmt::format("{},{}}}", body, more));
  INFO(more << "\n" << reply.body);
  CHECK(reply.status == 200);
  return server.prompt();
}

}  // namespace

TEST_CASE("Chats may have the calls and tools of messages") {
  const ResponsesServer server({.text = "Done."});
  const std::string own = chat_prompt(
      server,
      R"("tools":[{"type":"function","function":{"name":"look","description":"d","parameters":{"type":"object"}}}],)"
      R"("messages":[{"role":"user","content":"Look."},{"role":"assistant","content":"Yes.","tool_calls":[{"id":"t",)"
      R"("type":"function","function":{"name":"look","arguments":"{\"at\":1}"}}]},)"
      R"({"role":"tool","tool_call_id":"t","content":"ok"},{"role":"user","content":"And?"}])");
  for (const char* type : {R"("type":"custom",)", R"("type":null,)", ""}) {
    CHECK(chat_prompt(
              server,
              fmt::format(
                  R"("tools":[{{{}"name":"look","description":"d","input_schema":{{"type":"object"}},)"
                  R"("cache_control":{{"type":"ephemeral"}}}}],"tool_choice":{{"type":"auto"}},"messages":[)"
                  R"({{"role":"user","content":"Look."}},{{"role":"assistant","content":[{{"type":"text",)"
                  R"("text":"Yes."}},)"
                  R"({{"type":"tool_use","id":"t","name":"look","input":{{"at":1}}}}]}},{{"role":"user","content":[)"
                  R"({{"type":"tool_result","tool_use_id":"t","content":[{{"type":"text","text":"ok"}}]}},)"
                  R"({{"type":"text","text":"And?"}}]}}])",
                  type)) == own);
  }
  // A message of results alone is no message of the user.
  const std::string results = chat_prompt(
      server,
      R"("messages":[{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"look"}]},{"role":"user",)"
      R"("content":[{"type":"tool_result","tool_use_id":"t","content":"no","is_error":true},)"
      R"({"type":"tool_result","tool_use_id":"u"}]}])");
  CHECK_THAT(results, Catch::Contains("[tool]Error: no[tool][assistant]") && !Catch::Contains("[user]"));
}

TEST_CASE("Calls of messages are refused where they have no place") {
  const ResponsesServer server({.text = "Done."});
  const auto refusal = [&](std::string_view more) {
    const HttpReply reply = server.chat(fmt::format("{{{}}}", more));
    CHECK(reply.status == 400);
    return ParsedJson(reply.body).string("/error/message");
  };
  constexpr const char* kUse = R"({"type":"tool_use","id":"t","name":"f","input":{}})";
  CHECK_THAT(refusal(fmt::format(R"("messages":[{{"role":"user","content":[{}]}}])", kUse)),
             Catch::Contains("messages[0].content") && Catch::Contains("tool_use"));
  CHECK_THAT(refusal(R"("messages":[{"role":"assistant","content":[{"type":"tool_result","tool_use_id":"t"}]}])"),
             Catch::Contains("messages[0].content") && Catch::Contains("tool_result"));
  CHECK_THAT(refusal(R"("messages":[{"role":"assistant","content":[{"type":"tool_use","id":"t","input":{}}]}])"),
             Catch::Contains("messages[0].content") && Catch::Contains("name"));
  CHECK_THAT(refusal(R"("messages":[{"role":"user","content":"q"}],"tools":[{"type":"web_search_20260209","name":"w",)"
                     R"("input_schema":{}}])"),
             Catch::Contains("tools[0].type") && Catch::Contains("web_search_20260209"));
  CHECK_THAT(refusal(R"("messages":[{"role":"user","content":"q"}],"tools":[{"name":"f","parameters":{},)"
                     R"("input_schema":{"type":"object"}}])"),
             Catch::Contains("tools[0].function"));
  CHECK_THAT(refusal(R"("messages":[{"role":"user","content":"q"}],"tool_choice":{"type":"any"})"),
             Catch::Contains("tool_choice") && Catch::Contains("tools"));
}

TEST_CASE("A choice of messages holds in chats") {
  const ResponsesServer server({.text = call("look", "{}") + "\n" + call("look", "{}")});
  const auto calls_of = [&](std::string_view choice) {
    std::string body = R"({"chat_template":)";
    append_json_string(body, kItemTemplate);
    const HttpReply reply =
        server.chat(fmt::format(R"({},"messages":[{{"role":"user","content":"q"}}],"tools":[{{"name":"look",)"
                                R"("input_schema":{{"type":"object"}}}}],"tool_choice":{}}})",
                                body, choice));
    INFO(reply.body);
    REQUIRE(reply.status == 200);
    return ParsedJson(reply.body).size("/choices/0/message/tool_calls");
  };
  CHECK(calls_of(R"({"type":"auto"})") == 2);
  CHECK(server.engine.seen().back().grammar == nullptr);
  CHECK(calls_of(R"({"type":"auto","disable_parallel_tool_use":true})") == 1);
  CHECK(calls_of(R"({"type":"any"})") == 2);
  CHECK(server.engine.seen().back().grammar != nullptr);
  (void)calls_of(R"({"type":"tool","name":"look"})");
  CHECK(server.engine.seen().back().grammar != nullptr);
}
