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
