#include <fmt/format.h>

#include <array>
#include <catch2/catch.hpp>

#include "server/schema_check.h"
#include "server/test_server.h"

using namespace millrace;
using namespace millrace::test;

namespace {

/// Renders tools and reasoning as Qwen 3 does, in fewer words.
constexpr const char* kTemplate =
    R"({% if tools %}[tools <tool_call>]{{ tools | tojson }}{% endif %}{% for m in messages %}[{{ m.role }}])"
    R"({% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content if m.content }})"
    R"({% for c in m.tool_calls %}({{ c.function.name }} {{ c.function.arguments | tojson }}){% endfor %})"
    R"({{ m.tool_call_id }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %})"
    R"({% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %})"
    R"({% if reasoning_effort == 'high' %}<think>{% endif %})";
constexpr const char* kTools =
    R"("tools":[{"type":"function","function":{"name":"look","parameters":{"type":"object"}}}])";
constexpr const char* kCall = "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\": \"it\"}}\n</tool_call>";

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

/// Runs a server whose model answers `text`.
struct ToolServer : TestServer {
  explicit ToolServer(std::string text, server::ServerOptions options = allowing()) : TestServer(std::move(options)) {
    engine.on_submit = [text](const sched::GenerateRequest&) { return ScriptedReply{.text = text}; };
  }
  [[nodiscard]] std::shared_ptr<const grammar::Grammar> grammar() const { return engine.seen().back().grammar; }
  static server::ServerOptions allowing() {
    server::ServerOptions options;
    options.allow_request_chat_template = true;
    return options;
  }
  static server::ServerOptions without_reasoning() {
    server::ServerOptions options = allowing();
    options.detect_reasoning_format = false;
    return options;
  }
  [[nodiscard]] static std::string body(std::string_view more, std::string_view messages = {}) {
    return fmt::format(R"({{"chat_template":"{}","messages":{}{}{}}})", escaped(kTemplate),
                       messages.empty() ? R"([{"role":"user","content":"hi"}])" : messages, more.empty() ? "" : ",",
                       more);
  }
  [[nodiscard]] ParsedJson ask(std::string_view more, std::string_view messages = {}) const {
    const HttpReply reply = chat(body(more, messages));
    INFO(reply.body);
    REQUIRE(reply.status == 200);
    return ParsedJson(reply.body);
  }
  [[nodiscard]] std::string prompt() const {
    const auto request = engine.seen().back();
    return {request.prompt.begin(), request.prompt.end()};
  }
};

}  // namespace

TEST_CASE("A call of a tool is told from the answer") {
  const ToolServer server(fmt::format("I look.\n{}", kCall));
  const ParsedJson json = server.ask(kTools);
  CHECK(json.string("/choices/0/finish_reason") == "tool_calls");
  CHECK(json.string("/choices/0/message/content") == "I look.");
  REQUIRE(json.size("/choices/0/message/tool_calls") == 1);
  CHECK_THAT(json.string("/choices/0/message/tool_calls/0/id"), Catch::StartsWith("call_"));
  CHECK(json.string("/choices/0/message/tool_calls/0/type") == "function");
  CHECK(json.string("/choices/0/message/tool_calls/0/function/name") == "look");
  CHECK(json.string("/choices/0/message/tool_calls/0/function/arguments") == R"({"at": "it"})");
  CHECK_THAT(server.prompt(), Catch::Contains(R"("name": "look")"));
  const ParsedJson openapi(server.get("/openapi.json").body);
  CHECK(matches(json.at(""), openapi.at("/components/schemas/ChatCompletionResponse"), openapi.at("")));
}

TEST_CASE("The content of a message with calls alone is null") {
  const ToolServer server(kCall);
  CHECK(server.ask(kTools).is_null("/choices/0/message/content"));
}

TEST_CASE("Tools that are not shown leave the answer as it is") {
  const ToolServer server(kCall);
  const std::array<std::string, 3> mores = {"", fmt::format(R"({},"tool_choice":"none")", kTools), R"("tools":[])"};
  for (const std::string& more : mores) {
    INFO(more);
    const ParsedJson json = server.ask(more);
    CHECK(json.string("/choices/0/message/content") == kCall);
    CHECK(json.string("/choices/0/finish_reason") == "stop");
    CHECK(server.prompt() == "[user]hi[assistant]");
  }
}

TEST_CASE("A streamed call has its name and then pieces of arguments") {
  const ToolServer server(fmt::format("Hm.\n{}\n{}", kCall, kCall));
  const HttpReply reply = server.chat(ToolServer::body(fmt::format(R"({},"stream":true)", kTools)));
  REQUIRE(reply.status == 200);
  const ParsedJson openapi(server.get("/openapi.json").body);
  std::string content;
  std::string finish;
  std::array<std::string, 2> ids;
  std::array<std::string, 2> names;
  std::array<std::string, 2> arguments;
  size_t pieces = 0;
  for (const std::string& event : reply.events()) {
    if (event == "[DONE]") continue;
    const ParsedJson chunk(event);
    CHECK(matches(chunk.at(""), openapi.at("/components/schemas/ChatCompletionChunk"), openapi.at("")));
    if (chunk.has("/choices/0/delta/content")) content += chunk.string("/choices/0/delta/content");
    if (!chunk.is_null("/choices/0/finish_reason")) finish = chunk.string("/choices/0/finish_reason");
    if (!chunk.has("/choices/0/delta/tool_calls")) continue;
    const auto index = static_cast<size_t>(chunk.integer("/choices/0/delta/tool_calls/0/index"));
    REQUIRE(index < 2);
    if (chunk.has("/choices/0/delta/tool_calls/0/id")) {
      ids[index] += chunk.string("/choices/0/delta/tool_calls/0/id");
      names[index] += chunk.string("/choices/0/delta/tool_calls/0/function/name");
    }
    arguments[index] += chunk.string("/choices/0/delta/tool_calls/0/function/arguments");
    ++pieces;
  }
  CHECK(content == "Hm.");
  CHECK(finish == "tool_calls");
  CHECK(pieces > 10);
  CHECK(ids[0] != ids[1]);
  for (const size_t i : {0, 1}) {
    CHECK(names[i] == "look");
    CHECK(arguments[i] == R"({"at": "it"})");
  }
}

TEST_CASE("tool_choice begins the call unless reasoning may precede it") {
  const ToolServer server(R"( {"at": 1}})", ToolServer::without_reasoning());
  const ParsedJson json =
      server.ask(fmt::format(R"({},"tool_choice":{{"type":"function","function":{{"name":"look"}}}})", kTools));
  CHECK(json.string("/choices/0/message/tool_calls/0/function/name") == "look");
  CHECK(json.string("/choices/0/message/tool_calls/0/function/arguments") == R"({"at": 1})");
  CHECK_THAT(server.prompt(), Catch::EndsWith("[assistant]<tool_call>\n{\"name\": \"look\", \"arguments\":"));
  CHECK(server.grammar() != nullptr);
  const ToolServer reasoning(fmt::format("Hm.</think>{}", kCall));
  const ParsedJson reasoned =
      reasoning.ask(fmt::format(R"({},"tool_choice":"required","reasoning_effort":"high")", kTools));
  CHECK_THAT(reasoning.prompt(), Catch::EndsWith("[assistant]<think>"));
  CHECK(reasoned.string("/choices/0/message/reasoning_content") == "Hm.");
  CHECK(reasoned.string("/choices/0/message/tool_calls/0/function/name") == "look");
  CHECK(reasoning.grammar() != nullptr);
}

TEST_CASE("Tools and a response format constrain the answer together") {
  const ToolServer server(kCall);
  (void)server.ask(kTools);
  CHECK(server.grammar() == nullptr);
  const auto tools_with = [](std::string_view members) {
    return fmt::format(R"("tools":[{{"type":"function","function":{{"name":"look"{}}}}}])", members);
  };
  (void)server.ask(tools_with(R"(,"strict":true)"));
  const auto strict = server.grammar();
  CHECK(strict != nullptr);
  (void)server.ask(tools_with(R"(,"strict":true)"));
  CHECK(server.grammar() == strict);
  (void)server.ask(tools_with(R"(,"strict":false)"));
  CHECK(server.grammar() == nullptr);
  (void)server.ask(tools_with(R"(,"strict":true)") + R"(,"tool_choice":"none")");
  CHECK(server.grammar() == nullptr);
  (void)server.ask(tools_with("") + R"(,"regex":"a+")");
  CHECK(server.grammar() != nullptr);
  const auto refusal = [&](std::string_view members) {
    const HttpReply reply = server.chat(ToolServer::body(tools_with(members)));
    CHECK(reply.status == 400);
    return ParsedJson(reply.body).string("/error/message");
  };
  CHECK(refusal(R"(,"strict":1)") == "tools[0].function.strict: found 1, wanted a boolean");
  CHECK(refusal(R"(,"strict":true,"parameters":{"type":"string"})") ==
        "tools[0].function.parameters: with strict its type has to be 'object'");
  CHECK_THAT(refusal(R"(,"strict":true,"parameters":{"type":"object","allOf":[{"unevaluatedProperties":false}]})"),
             Catch::StartsWith("tools[0].function.parameters: ") && Catch::Contains("'unevaluatedProperties'"));
  // Others are held to what can be held to.
  (void)server.ask(tools_with(R"(,"parameters":{"type":"object","allOf":[{"unevaluatedProperties":false}]})") +
                   R"(,"tool_choice":"required")");
  CHECK(server.grammar() != nullptr);
}

TEST_CASE("The server detects the format of a template in a request") {
  const auto answer = [](std::string_view marker, const std::string& text) {
    const ToolServer server(text);
    const HttpReply reply = server.chat(
        fmt::format(R"({{"chat_template":"{}{{{{ tools }}}}","messages":[{{"role":"user","content":"hi"}}],{}}})",
                    escaped(marker), kTools));
    INFO(reply.body);
    REQUIRE(reply.status == 200);
    return ParsedJson(reply.body);
  };
  const ParsedJson kimi = answer("<|tool_calls_section_begin|>",
                                 "<|tool_calls_section_begin|><|tool_call_begin|>functions.look:3"
                                 "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>");
  CHECK(kimi.string("/choices/0/message/tool_calls/0/id") == "functions.look:3");
  CHECK(kimi.string("/choices/0/message/tool_calls/0/function/name") == "look");
  const ParsedJson mistral = answer("[TOOL_CALLS][ARGS]", "[TOOL_CALLS]look[ARGS]{}");
  CHECK(mistral.string("/choices/0/message/tool_calls/0/id").size() == 9);
  const ParsedJson harmony = answer("<|channel|><|message|>functions",
                                    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
                                    "to=functions.look <|constrain|>json<|message|>{\"at\": 1}");
  CHECK(harmony.string("/choices/0/message/reasoning_content") == "Hm.");
  CHECK(harmony.string("/choices/0/message/tool_calls/0/function/arguments") == "{\"at\": 1}");
  CHECK(harmony.string("/choices/0/finish_reason") == "tool_calls");
}

TEST_CASE("Without parallel calls the answer ends with its first") {
  const ToolServer server(fmt::format("{}\n{}", kCall, kCall));
  CHECK(server.ask(kTools).size("/choices/0/message/tool_calls") == 2);
  const ParsedJson json = server.ask(fmt::format(R"({},"parallel_tool_calls":false)", kTools));
  CHECK(json.size("/choices/0/message/tool_calls") == 1);
  CHECK(json.string("/choices/0/finish_reason") == "tool_calls");
  CHECK(json.integer("/usage/completion_tokens") < static_cast<int64_t>(2 * std::string_view(kCall).size()));
}

TEST_CASE("A call counts where the model did not end its reasoning") {
  const ToolServer server(fmt::format("<think>I look.\n{}\n{}", kCall, kCall));
  const ParsedJson json = server.ask(kTools);
  CHECK(json.string("/choices/0/finish_reason") == "tool_calls");
  CHECK(json.string("/choices/0/message/reasoning_content") == "I look.");
  CHECK(json.is_null("/choices/0/message/content"));
  REQUIRE(json.size("/choices/0/message/tool_calls") == 2);
  CHECK(json.string("/choices/0/message/tool_calls/1/function/arguments") == R"({"at": "it"})");
  const ParsedJson single = server.ask(fmt::format(R"({},"parallel_tool_calls":false)", kTools));
  CHECK(single.size("/choices/0/message/tool_calls") == 1);
  // No grammar has constrained the call.
  const ParsedJson strict = server.ask(R"("tools":[{"type":"function","function":{"name":"look","strict":true}}])");
  CHECK(strict.string("/choices/0/finish_reason") == "stop");
  CHECK_THAT(strict.string("/choices/0/message/reasoning_content"), Catch::EndsWith("</tool_call>"));
  const HttpReply stream = server.chat(ToolServer::body(fmt::format(R"({},"stream":true)", kTools)));
  CHECK_THAT(stream.body, Catch::Contains(R"("name":"look")") && Catch::Contains(R"("finish_reason":"tool_calls")"));
  CHECK_THAT(stream.body, !Catch::Contains("<tool_call>"));
}

TEST_CASE("A call that max_tokens cuts short says length") {
  const ToolServer server(kCall);
  const ParsedJson json = server.ask(fmt::format(R"({},"max_tokens":50)", kTools));
  CHECK(json.string("/choices/0/finish_reason") == "length");
  CHECK(json.string("/choices/0/message/tool_calls/0/function/name") == "look");
}

TEST_CASE("Calls and their results come back to the template") {
  const ToolServer server("ok");
  const std::string call = R"({"id":"c1","type":"function","function":{"name":"look","arguments":"{\"at\": \"it\"}"}})";
  const std::string wrong = R"({"id":"c2","function":{"name":"look","arguments":"{at"}})";
  const auto messages =
      fmt::format(R"([{{"role":"user","content":"hi"}},{{"role":"assistant","content":null,"reasoning_content":"hm",)"
                  R"("tool_calls":[{},{}]}},)"
                  R"({{"role":"tool","tool_call_id":"c1","content":"seen"}}])",
                  call, wrong);
  (void)server.ask("", messages);
  CHECK(server.prompt() ==
        "[user]hi[assistant]<think>hm</think>(look {\"at\": \"it\"})(look \"{at\")[tool]seenc1[assistant]");
}

TEST_CASE("Arguments of earlier calls may be any JSON") {
  const ToolServer server("ok");
  const auto shown = [&](std::string_view arguments) {
    const auto messages = fmt::format(
        R"([{{"role":"user","content":"hi"}},{{"role":"assistant","content":"","tool_calls":[{{"id":"c1","function":)"
        R"({{"name":"look","arguments":{}}}}}]}}])",
        arguments);
    (void)server.ask("", messages);
    return server.prompt();
  };
  CHECK(shown("[]") == "[user]hi[assistant](look {})[assistant]");
  CHECK(shown("null") == "[user]hi[assistant](look {})[assistant]");
  CHECK(shown(R"({"at":"it"})") == "[user]hi[assistant](look {\"at\": \"it\"})[assistant]");
  CHECK(shown(R"("\"{\\\"at\\\": 1}\"")") == "[user]hi[assistant](look {\"at\": 1})[assistant]");
  CHECK(shown(R"("{\"at\"")") == "[user]hi[assistant](look \"{\\\"at\\\"\")[assistant]");
}

TEST_CASE("Reasoning that no <think> begins is reasoning") {
  const ToolServer server("Hm.\n</think>\n\nYes.");
  const ParsedJson json = server.ask("");
  CHECK(json.string("/choices/0/message/reasoning_content") == "Hm.");
  CHECK(json.string("/choices/0/message/content") == "Yes.");
  CHECK(json.integer("/usage/completion_tokens_details/reasoning_tokens") == 12);
  // The template has closed the reasoning.
  const ParsedJson off = server.ask(R"("enable_thinking":false)");
  CHECK(off.string("/choices/0/message/content") == "Hm.\n</think>\n\nYes.");
  std::string content;
  for (const std::string& event : server.chat(ToolServer::body(R"("stream":true)")).events()) {
    if (event == "[DONE]") continue;
    const ParsedJson chunk(event);
    if (chunk.has("/choices/0/delta/content")) content += chunk.string("/choices/0/delta/content");
  }
  CHECK(content.find("think>") == std::string::npos);
  CHECK_THAT(content, Catch::EndsWith("Yes."));
}

TEST_CASE("Numbers of calls and tools reach the template as written") {
  const ToolServer server("ok");
  const auto messages_with = [](std::string_view arguments) {
    return fmt::format(R"([{{"role":"user","content":"hi"}},{{"role":"assistant","content":"","tool_calls":)"
                       R"([{{"function":{{"name":"look","arguments":{}}}}}]}}])",
                       arguments);
  };
  for (const char* number : {"18446744073709551615", "18446744073709551616", "-1000000000000000019884624838656"}) {
    const std::string arguments = fmt::format(R"({{"id": {}, "x": [1.5]}})", number);
    const std::string wanted = fmt::format("[user]hi[assistant](look {})[assistant]", arguments);
    (void)server.ask("", messages_with(arguments));
    CHECK(server.prompt() == wanted);
    (void)server.ask("", messages_with("\"" + escaped(arguments) + "\""));
    CHECK(server.prompt() == wanted);
    (void)server.ask(
        fmt::format(R"("tools":[{{"type":"function","function":{{"name":"look","parameters":{{"type":"object",)"
                    R"("properties":{{"id":{{"type":"integer","maximum":{0}}}}}}}}}}}],"metadata":{{"id":{0}}})",
                    number));
    CHECK_THAT(server.prompt(), Catch::Contains(fmt::format("\"maximum\": {}}}", number)));
  }
  (void)server.ask("", messages_with("\"\\ufeff{}\""));
  CHECK_THAT(server.prompt(), Catch::Contains("(look \"\xEF\xBB\xBF{}\")"));
}

TEST_CASE("Reasoning has its own member and is counted") {
  const ToolServer server("<think>\nHm.\n</think>\n\nYes.");
  const ParsedJson json = server.ask("");
  CHECK(json.string("/choices/0/message/reasoning_content") == "Hm.");
  CHECK(json.string("/choices/0/message/reasoning") == "Hm.");
  CHECK(json.string("/choices/0/message/content") == "Yes.");
  CHECK(json.integer("/usage/completion_tokens_details/reasoning_tokens") == 13);
  const ParsedJson together = server.ask(R"("separate_reasoning":false)");
  CHECK(together.string("/choices/0/message/content") == "<think>\nHm.\n</think>\n\nYes.");
  for (const char* hidden : {R"("include_reasoning":false)", R"("reasoning_format":"hidden")"}) {
    const ParsedJson without = server.ask(hidden);
    CHECK(without.string("/choices/0/message/content") == "Yes.");
    CHECK_FALSE(without.has("/choices/0/message/reasoning_content"));
  }
  for (const char* within : {"none", "raw"}) {
    CHECK(server.ask(fmt::format(R"("reasoning_format":"{}")", within)).string("/choices/0/message/content") ==
          "<think>\nHm.\n</think>\n\nYes.");
  }
  CHECK(server.ask(R"("reasoning_format":"auto")").string("/choices/0/message/content") == "Yes.");
  std::string reasoning;
  const HttpReply stream = server.chat(ToolServer::body(R"("stream":true)"));
  for (const std::string& event : stream.events()) {
    if (event == "[DONE]") continue;
    const ParsedJson chunk(event);
    if (!chunk.has("/choices/0/delta/reasoning_content")) continue;
    CHECK_FALSE(chunk.has("/choices/0/delta/content"));
    CHECK(chunk.string("/choices/0/delta/reasoning") == chunk.string("/choices/0/delta/reasoning_content"));
    reasoning += chunk.string("/choices/0/delta/reasoning_content");
  }
  CHECK(reasoning == "Hm.");
}

TEST_CASE("The template hears how much reasoning is wanted") {
  const ToolServer server("Hm.</think>Yes.");
  CHECK(server.ask(R"("reasoning_effort":"none")").string("/choices/0/message/content") == "Hm.</think>Yes.");
  CHECK_THAT(server.prompt(), Catch::EndsWith("[assistant]<think></think>"));
  const ParsedJson json = server.ask(R"("reasoning_effort":"high")");
  CHECK_THAT(server.prompt(), Catch::EndsWith("[assistant]<think>"));
  CHECK(json.string("/choices/0/message/reasoning_content") == "Hm.");
  CHECK(json.string("/choices/0/message/content") == "Yes.");
  (void)server.ask(R"("enable_thinking":false)");
  CHECK_THAT(server.prompt(), Catch::EndsWith("<think></think>"));
  (void)server.ask(R"("reasoning_effort":"none","chat_template_kwargs":{"enable_thinking":true})");
  CHECK_THAT(server.prompt(), Catch::EndsWith("[assistant]"));
}

TEST_CASE("Unsupported template features are refused or need a flag") {
  const auto request = fmt::format(R"({{"messages":[{{"role":"user","content":"hi"}}],{}}})", kTools);
  {
    const ToolServer server(kCall);
    const HttpReply reply = server.chat(request);
    CHECK(reply.status == 400);
    CHECK(ParsedJson(reply.body).string("/error/param") == "tools");
    CHECK(server.post("/apply-template", request).status == 400);
  }
  auto options = ToolServer::allowing();
  options.detect_tool_format = false;
  options.tool_format = text::ToolFormat::kHermes;
  options.detect_reasoning_format = false;
  {
    const ToolServer server(kCall, options);
    const ParsedJson json(server.chat(request).body);
    CHECK(json.size("/choices/0/message/tool_calls") == 1);
    CHECK_FALSE(json.has("/usage/completion_tokens_details"));
  }
  options.tool_format.reset();
  const ToolServer server(kCall, options);
  CHECK(server.chat(ToolServer::body(kTools)).status == 400);
}

TEST_CASE("The call of a custom tool has a text in a chat") {
  constexpr const char* kCustom = R"("tools":[{"type":"custom","custom":{"name":"patch","description":"Patches."}},)"
                                  R"({"type":"function","function":{"name":"look"}}])";
  const std::string output =
      "<tool_call>\n{\"name\": \"patch\", \"arguments\": {\"input\": \"a\\n\\\"b\\\"\"}}\n</tool_call>\n" +
      std::string(kCall) + "\n<tool_call>\n{\"name\": \"patch\", \"arguments\": {\"text\": 1}}\n</tool_call>";
  const ToolServer server(output);
  const ParsedJson json = server.ask(kCustom);
  const ParsedJson openapi(server.get("/openapi.json").body);
  CHECK(matches(json.at(""), openapi.at("/components/schemas/ChatCompletionResponse"), openapi.at("")));
  const std::string calls = "/choices/0/message/tool_calls/";
  CHECK(json.string(calls + "0/type") == "custom");
  CHECK(json.string(calls + "0/custom/name") == "patch");
  CHECK(json.string(calls + "0/custom/input") == "a\n\"b\"");
  CHECK(json.string(calls + "1/function/name") == "look");
  // Arguments of another form are the text themselves.
  CHECK(json.string(calls + "2/custom/input") == R"({"text": 1})");
  CHECK_THAT(server.prompt(), Catch::Contains(R"("name": "patch")") && Catch::Contains(R"("input")"));
  const HttpReply reply = server.chat(ToolServer::body(fmt::format(R"({},"stream":true)", kCustom)));
  std::array<std::string, 3> inputs;
  for (const std::string& event : reply.events()) {
    if (event == "[DONE]") continue;
    const ParsedJson chunk(event);
    CHECK(matches(chunk.at(""), openapi.at("/components/schemas/ChatCompletionChunk"), openapi.at("")));
    if (!chunk.has("/choices/0/delta/tool_calls")) continue;
    const auto index = static_cast<size_t>(chunk.integer("/choices/0/delta/tool_calls/0/index"));
    REQUIRE(index < 3);
    const std::string member = index == 1 ? "function/arguments" : "custom/input";
    inputs[index] += chunk.string("/choices/0/delta/tool_calls/0/" + member);
  }
  CHECK(inputs[0] == "a\n\"b\"");
  CHECK(inputs[1] == R"({"at": "it"})");
  CHECK(inputs[2] == R"({"text": 1})");
}

TEST_CASE("A custom call of an earlier message reaches the prompt") {
  const ToolServer server("Done.");
  (void)server.ask(R"("tools":[{"type":"custom","custom":{"name":"patch"}}])",
                   R"([{"role":"assistant","tool_calls":[{"id":"c","type":"custom","custom":{"name":"patch",)"
                   R"("input":"a\"b"}}]},{"role":"tool","tool_call_id":"c","content":"ok"}])");
  CHECK_THAT(server.prompt(), Catch::Contains(R"((patch {"input": "a\"b"}))"));
}

TEST_CASE("The grammar of a custom tool constrains its calls") {
  const ToolServer server("Done.");
  const auto format = [](std::string_view syntax, std::string_view definition) {
    return fmt::format(R"("tools":[{{"type":"custom","custom":{{"name":"patch","format":{{"type":"grammar","grammar":)"
                       R"({{"syntax":"{}","definition":"{}"}}}}}}}}])",
                       syntax, definition);
  };
  (void)server.ask(format("regex", "[ab]+"));
  REQUIRE(server.grammar() != nullptr);
  CHECK_THAT(server.prompt(), Catch::Contains("regex grammar:\\n[ab]+"));
  (void)server.ask(format("lark", "start: \\\"a\\\""));
  REQUIRE(server.grammar() != nullptr);
  for (const auto& [syntax, definition] :
       {std::pair{"lark", "start: start"}, {"lark", "x"}, {"regex", "(?=a)"}, {"gbnf", "root ::= x"}}) {
    const HttpReply reply = server.chat(ToolServer::body(format(syntax, definition)));
    INFO(reply.body);
    CHECK(reply.status == 400);
    CHECK(ParsedJson(reply.body).string("/error/param") == "tools");
  }
}

TEST_CASE("A chat may allow some of its tools") {
  const ToolServer server("Done.");
  constexpr const char* kTwo = R"("tools":[{"type":"function","function":{"name":"look"}},)"
                               R"({"type":"custom","custom":{"name":"patch"}}])";
  const auto choice = [&](std::string_view mode, std::string_view tools) {
    return fmt::format(R"("tool_choice":{{"type":"allowed_tools","allowed_tools":{{"mode":"{}","tools":[{}]}}}},{})",
                       mode, tools, kTwo);
  };
  constexpr const char* kLook = R"({"type":"function","function":{"name":"look"}})";
  constexpr const char* kPatch = R"({"type":"custom","custom":{"name":"patch"}})";
  (void)server.ask(kTwo);
  const std::string prompt = server.prompt();
  CHECK(server.grammar() == nullptr);
  for (const char* mode : {"auto", "required"}) {
    (void)server.ask(choice(mode, kPatch));
    CHECK(server.grammar() != nullptr);
    // The tools that may not be called are shown as well, so that the prefix stays the same.
    CHECK(server.prompt() == prompt);
  }
  const auto refused = [&](const std::string& more) {
    const HttpReply reply = server.chat(ToolServer::body(more));
    return reply.status == 400 ? ParsedJson(reply.body).string("/error/param") : "accepted";
  };
  CHECK(refused(choice("never", kLook)) == "tool_choice");
  CHECK(refused(choice("auto", R"({"type":"function","function":{"name":"other"}})")) == "tool_choice");
  CHECK(refused(choice("required", "")) == "tool_choice");
  CHECK(refused(choice("auto", "")) == "tool_choice");
  for (const char* mode : {"auto", "required"}) {
    CHECK(refused(choice(mode, R"({"type":"function","function":{"name":"patch"}})")) == "tool_choice");
    CHECK(refused(choice(mode, R"({"type":"custom","custom":{"name":"look"}})")) == "tool_choice");
  }
  for (const char* chosen :
       {R"({"type":"function","function":{"name":"patch"}})", R"({"type":"custom","custom":{"name":"look"}})"}) {
    CHECK(refused(fmt::format(R"("tool_choice":{},{})", chosen, kTwo)) == "tool_choice");
  }
  CHECK(refused(R"("tools":[{"type":"function","function":{"name":"f"}},{"type":"custom","custom":{"name":"f"}}])") ==
        "tools");
}
