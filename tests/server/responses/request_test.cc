#include "server/responses/request.h"

#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "server/recorded.h"
#include "server/responses/store.h"
#include "support/skip.h"

using namespace millrace;
using namespace millrace::server;
using namespace millrace::test;
using namespace millrace::server::responses;
using openai::ChatMessage;
using openai::ToolChoice;

namespace {

constexpr openai::RequestLimits kItemLimits{.vocab_size = 100};

openai::ApiResult<ResponsesRequest> parse_body(const std::string& body) {
  static const ResponseStore store(1 << 20);
  return parse_responses_request(body, kItemLimits, store, "x");
}

ResponsesRequest parsed(const std::string& body) {
  auto request = parse_body(body);
  INFO(body);
  if (request.has_error()) FAIL(request.error().message);
  return std::move(*request);
}

/// Returns a request with these items as its input.
ResponsesRequest with_items(std::string_view items, std::string_view more = {}) {
  return parsed(fmt::format(R"({{"input":[{}]{}}})", items, more));
}

ResponsesRequest with_tools(std::string_view tools, std::string_view more = {}) {
  return parsed(fmt::format(R"({{"input":"x","tools":[{}]{}}})", tools, more));
}

void check_refusal(std::string_view body, unsigned status, std::string_view param) {
  const auto request = parse_body(std::string(body));
  INFO(body);
  REQUIRE(request.has_error());
  INFO(request.error().message);
  CHECK(request.error().status == status);
  CHECK(request.error().param == param);
}

constexpr const char* kSearch = R"({"type":"function","name":"find","parameters":{"type":"object"}})";
constexpr const char* kNamespaces =
    R"({"type":"namespace","name":"a","tools":[{"type":"function","name":"go"},{"type":"custom","name":"do"}]},)"
    R"({"type":"namespace","name":"b","tools":[{"type":"function","name":"go"}]})";

}  // namespace

TEST_CASE("A text is the message of a user") {
  for (const char* text : {"", "hi \\\"you\\\""}) {
    const ResponsesRequest request = parsed(fmt::format(R"({{"input":"{}"}})", text));
    REQUIRE(request.conversation.messages.size() == 1);
    CHECK(request.conversation.messages[0].role == "user");
    CHECK(request.conversation.messages[0].content == (*text == 0 ? "" : "hi \"you\""));
    CHECK(request.input.size() == 1);
  }
}

TEST_CASE("Instructions and leading system messages become one") {
  const ResponsesRequest request =
      with_items(R"({"role":"developer","content":"B"},{"role":"system","content":[{"type":"input_text","text":"C"}]},)"
                 R"({"role":"user","content":"D"},{"role":"developer","content":"E"})",
                 R"(,"instructions":"A")");
  const auto& messages = request.conversation.messages;
  REQUIRE(messages.size() == 3);
  CHECK(messages[0].role == "system");
  CHECK(messages[0].content == "A\n\nB\n\nC");
  CHECK(messages[1].role == "user");
  CHECK(messages[2].role == "system");
}

TEST_CASE("Items of the assistant in a row become one message") {
  const ResponsesRequest request = with_items(
      R"({"role":"user","content":"Q"},)"
      R"({"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"T"}]},)"
      R"({"type":"message","role":"assistant","content":[{"type":"output_text","text":"A","annotations":[]}]},)"
      R"({"type":"function_call","call_id":"c1","name":"f","arguments":"{\"x\":1}"},)"
      R"({"type":"custom_tool_call","call_id":"c2","name":"g","input":"a\nb"},)"
      R"({"type":"function_call_output","call_id":"c1","output":"1"},)"
      R"({"type":"custom_tool_call_output","call_id":"c2","output":[{"type":"input_text","text":"2"}]},)"
      R"({"type":"function_call","call_id":"c3","name":"go","namespace":"a","arguments":"{}"})");
  const auto& messages = request.conversation.messages;
  REQUIRE(messages.size() == 5);
  CHECK(messages[1].role == "assistant");
  CHECK(messages[1].reasoning == "T");
  CHECK(messages[1].content == "A");
  REQUIRE(messages[1].tool_calls.size() == 2);
  CHECK(messages[1].tool_calls[0].arguments == R"({"x":1})");
  CHECK(messages[1].tool_calls[1].arguments == R"({"input":"a\nb"})");
  CHECK(messages[2].role == "tool");
  CHECK(messages[2].tool_call_id == "c1");
  CHECK(messages[3].content == "2");
  CHECK(messages[4].tool_calls[0].name == "a__go");
}

TEST_CASE("Items that other clients send are accepted") {
  const ResponsesRequest request = with_items(
      R"({"role":"user","content":"x"},{"type":"reasoning","id":"r","summary":[],"content":null,"status":null},)"
      R"({"role":"assistant","content":null},{"type":"function_call","call_id":"c","name":"f","arguments":{"a":1}},)"
      R"({"type":"function_call_output","call_id":"c","status":null,"output":[{"type":"output_text","text":"y"}]})",
      R"(,"previous_response_id":"")");
  REQUIRE(request.conversation.messages.size() == 3);
  CHECK(request.conversation.messages[1].tool_calls[0].arguments == R"({"a":1})");
}

TEST_CASE("A function call without arguments has none") {
  for (const char* arguments : {"", R"(,"arguments":null)", R"(,"arguments":"{}")"}) {
    const ResponsesRequest request = with_items(
        fmt::format(R"({{"role":"user","content":"x"}},{{"type":"function_call","call_id":"c","name":"f"{}}},)"
                    R"({{"type":"function_call_output","call_id":"c","output":"y"}})",
                    arguments));
    CHECK(request.conversation.messages[1].tool_calls[0].arguments == "{}");
  }
}

TEST_CASE("Reasoning is its content or else its summary") {
  const ResponsesRequest request = with_items(
      R"({"type":"reasoning","id":"r","summary":[{"type":"summary_text","text":"S"}],"encrypted_content":"b64"},)"
      R"({"role":"user","content":"x"},)"
      R"({"type":"reasoning","id":"r","summary":[{"type":"summary_text","text":"S"}],)"
      R"("content":[{"type":"reasoning_text","text":"C"}]},{"role":"user","content":"x"},)"
      R"({"type":"reasoning","id":"r","summary":[],"encrypted_content":"b64"},{"role":"user","content":"x"})");
  const auto& messages = request.conversation.messages;
  REQUIRE(messages.size() == 5);
  CHECK(messages[0].reasoning == "S");
  CHECK(messages[2].reasoning == "C");
  CHECK(messages[4].role == "user");
}

TEST_CASE("Items of hosted tools are left out") {
  const ResponsesRequest request =
      with_items(R"({"type":"web_search_call","id":"w","status":"completed"},{"role":"user","content":"x"})");
  CHECK(request.conversation.messages.size() == 1);
  CHECK(request.input.size() == 2);
}

TEST_CASE("An unfinished last message goes on") {
  const std::string item = R"({"type":"message","role":"assistant","status":"incomplete","content":"A"})";
  ResponsesRequest request = with_items(R"({"role":"user","content":"x"},)" + item);
  CHECK(request.conversation.continue_final_message);
  CHECK_FALSE(request.conversation.add_generation_prompt);
  request = with_items(item + R"(,{"role":"user","content":"x"})");
  CHECK_FALSE(request.conversation.continue_final_message);
  CHECK(request.conversation.add_generation_prompt);
}

TEST_CASE("Input items get an id and a type") {
  const ResponsesRequest request =
      with_items(R"({"role":"user","content":"x"},{"type":"function_call_output","id":null,"call_id":"c","output":""},)"
                 R"({"type":"message","id":"msg_own","role":"user","content":"x"})");
  CHECK(request.input[0] == R"({"type":"message","id":"msg_x_i0","role":"user","content":"x"})");
  CHECK(request.input[1] == R"({"type":"function_call_output","id":"fco_x_i1","call_id":"c","output":""})");
  CHECK(request.input[2] == R"({"type":"message","id":"msg_own","role":"user","content":"x"})");
}

TEST_CASE("Image parts of tools and of earlier items become notes") {
  const std::string image = R"({"type":"input_image","image_url":"data:image/png;base64,aGk="})";
  const std::string call = R"({"type":"function_call","call_id":"c","name":"f","arguments":"{}"})";
  ResponsesRequest request = with_items(fmt::format(
      R"({},{{"type":"function_call_output","call_id":"c","output":[{{"type":"input_text","text":"a"}},{}]}})", call,
      image));
  CHECK(request.conversation.messages.back().content == "a\n[image left out: this model reads text only]");
  // The store keeps what was sent.
  CHECK_THAT(request.input.back(), Catch::Contains("base64,aGk="));
  // Older versions of Codex send the image of view_image in a message after the result.
  request = with_items(fmt::format(
      R"({},{{"type":"function_call_output","call_id":"c","output":"ok"}},{{"role":"user","content":[{}]}})", call,
      image));
  CHECK(request.conversation.messages.back().content == "[image left out: this model reads text only]");
  request = with_items(fmt::format(
      R"({{"role":"user","content":[{}]}},{{"role":"assistant","content":"b"}},{{"role":"user","content":"c"}})",
      image));
  CHECK(request.conversation.messages.front().content == "[image left out: this model reads text only]");
}

TEST_CASE("Items of types that are new say nothing") {
  const ResponsesRequest request =
      with_items(R"({"role":"user","content":"a"},{"type":"telepathy","content":5},)"
                 R"({"type":"agent_message","author":"b","content":[{"type":"input_text","text":"done"},)"
                 R"({"type":"encrypted_content","encrypted_content":"gAAAAABo"}]},{"type":"agent_message"},)"
                 R"({"type":"function_call","call_id":"c","name":"f","arguments":"{}"},)"
                 R"({"type":"function_call_output","call_id":"c","output":[{"type":"encrypted_content"}]})");
  const auto& messages = request.conversation.messages;
  REQUIRE(messages.size() == 4);
  CHECK(messages[1].role == "user");
  CHECK(messages[1].content == "done\n[encrypted_content left out: this model reads text only]");
  CHECK(messages[3].content == "[encrypted_content left out: this model reads text only]");
  check_refusal(R"({"input":[{"type":"telepathy"}]})", 400, "input");
  check_refusal(R"({"input":[{"role":"user","content":[{"type":"telepathy"}]}]})", 400, "input[0].content[0]");
}

TEST_CASE("An agent reads the task that another gives it") {
  const ResponsesRequest request =
      with_items(R"({"type":"agent_message","author":"/root","recipient":"/root/a","content":[)"
                 R"({"type":"input_text","text":"Task name: /root/a\nPayload:\n"},)"
                 R"({"type":"encrypted_content","encrypted_content":"Count the whales."}]})");
  REQUIRE(request.conversation.messages.size() == 1);
  CHECK(request.conversation.messages[0].content == "Task name: /root/a\nPayload:\n\nCount the whales.");
}

TEST_CASE("An item may add tools") {
  const ResponsesRequest request = with_items(
      R"({"type":"additional_tools","role":"developer","tools":[{"type":"namespace","name":"functions","tools":[)"
      R"({"type":"custom","name":"exec"}]},{"type":"web_search"}]},{"role":"user","content":"a"},)"
      R"({"type":"additional_tools","tools":[{"type":"function","name":"g"},{"type":"function","name":"g"}]},)"
      R"({"type":"additional_tools"})");
  REQUIRE(request.conversation.tools.size() == 2);
  CHECK(request.conversation.tools[0].name == "functions__exec");
  CHECK(request.conversation.tools[0].is_custom);
  CHECK(request.conversation.tools[1].name == "g");
  CHECK(request.conversation.messages.size() == 1);
  check_refusal(R"({"input":[{"type":"additional_tools","tools":[{"type":"x"}]}]})", 400, "input[0].tools[0].type");
}

TEST_CASE("Bad items are refused by their path") {
  const auto check = [](std::string_view item, std::string_view param) {
    check_refusal(fmt::format(R"({{"input":[{{"role":"user","content":"x"}},{}]}})", item), 400, param);
  };
  check("1", "input[1]");
  check(R"({"type":1})", "input[1].type");
  check(R"({"content":"x"})", "input[1].role");
  check(R"({"role":"tool","content":"x"})", "input[1].role");
  check(R"({"role":"user"})", "input[1].content");
  check(R"({"role":"user","content":[{"type":"input_image","image_url":"data:"}]})", "input[1].content[0]");
  check(R"({"role":"user","content":[{"text":"x"}]})", "input[1].content[0]");
  check(R"({"role":"user","content":[{"type":"input_text"}]})", "input[1].content[0].text");
  check(R"({"type":"function_call","name":"f","arguments":""})", "input[1].call_id");
  check(R"({"type":"function_call","call_id":"c","arguments":""})", "input[1].name");
  check(R"({"type":"function_call","call_id":"c","name":"","arguments":""})", "input[1].name");
  check(R"({"type":"function_call","call_id":"c","name":"f","arguments":1})", "input[1].arguments");
  check(R"({"type":"custom_tool_call","call_id":"c","name":"f"})", "input[1].input");
  check(R"({"type":"function_call_output","call_id":"c"})", "input[1].output");
  check(R"({"type":"item_reference","id":"msg_1"})", "input[1].id");
  check(R"({"type":"item_reference"})", "input[1].id");
}

TEST_CASE("Functions namespaces and custom tools are shown as functions") {
  const ResponsesRequest request = with_tools(
      fmt::format(R"({},{},{{"type":"web_search","external_web_access":true}},{{"type":"web_search_2025_08_26"}})",
                  kSearch, kNamespaces));
  CHECK(request.conversation.tools_json ==
        R"([{"type":"function","function":{"name":"find","parameters":{"type":"object"}}},)"
        R"({"type":"function","function":{"name":"a__go"}},)"
        R"({"type":"function","function":{"name":"a__do","parameters":{"type":"object","properties":{"input":)"
        R"({"type":"string"}},"required":["input"],"additionalProperties":false}}},)"
        R"({"type":"function","function":{"name":"b__go"}}])");
  CHECK(request.conversation.tools.size() == 4);
  CHECK(request.conversation.tools[2].is_custom);
  CHECK_FALSE(request.conversation.tools[1].is_custom);
  CHECK(request.origins.at("a__do").name == "do");
  CHECK(request.origins.at("b__go").name_space == "b");
}

TEST_CASE("Tools in the form of chats are those of responses") {
  const std::string flat = with_tools(kSearch).conversation.tools_json;
  for (const char* tool : {R"({"type":"function","function":{"name":"find","parameters":{"type":"object"}}})",
                           R"({"type":null,"name":"find","parameters":{"type":"object"}})",
                           R"({"name":"find","parameters":{"type":"object"}})"}) {
    for (const char* choice :
         {R"({"type":"function","name":"find"})", R"({"type":"function","function":{"name":"find"}})"}) {
      const ResponsesRequest request = with_tools(tool, fmt::format(R"(,"tool_choice":{})", choice));
      CHECK(request.conversation.tools_json == flat);
      CHECK(request.conversation.chosen_tool == "find");
    }
  }
}

TEST_CASE("The grammar of a custom tool is in its description") {
  const ResponsesRequest request =
      with_tools(R"({"type":"custom","name":"p","description":"D","format":{"type":"grammar","syntax":"lark",)"
                 R"("definition":"x: y"}})");
  CHECK_THAT(request.conversation.tools_json, Catch::Contains("D\\n\\n") && Catch::Contains("lark grammar:\\nx: y"));
  REQUIRE(request.conversation.tools[0].input);
  CHECK(request.conversation.tools[0].input->syntax == openai::InputGrammar::Syntax::kLark);
  CHECK(request.conversation.tools[0].input->definition == "x: y");
}

TEST_CASE("Bad tools are refused") {
  const auto check = [](std::string_view tool, std::string_view param) {
    check_refusal(fmt::format(R"({{"input":"x","tools":[{}]}})", tool), 400, param);
  };
  check("1", "tools[0]");
  check(R"({"type":"hammer","name":"f"})", "tools[0].type");
  check(R"({"type":"function"})", "tools[0].name");
  check(R"({"type":"function","function":{"parameters":{}}})", "tools[0].function.name");
  check(R"({"type":"function","name":"f","parameters":1})", "tools[0].parameters");
  check(R"({"type":"function","name":"f","strict":1})", "tools[0].strict");
  check(R"({"type":"function","name":"f"},{"type":"custom","name":"f"})", "tools");
  check(R"({"type":"custom","name":"f","format":{"type":"xml"}})", "tools");
  check(R"({"type":"custom","name":"f","format":{"type":"grammar","syntax":"gbnf","definition":"x"}})", "tools");
  check(R"({"type":"custom","name":"f","format":{"type":"grammar","syntax":"lark"}})", "tools[0].format.definition");
  check(R"({"type":"namespace","name":"f"})", "tools[0].tools");
  check(R"({"type":"namespace","name":"f","tools":[{"type":"namespace","name":"g","tools":[]}]})",
        "tools[0].tools[0].type");
}

TEST_CASE("A choice names a tool by its own name") {
  const auto chosen = [](std::string_view choice) {
    return with_tools(fmt::format("{},{}", kSearch, kNamespaces), fmt::format(R"(,"tool_choice":{})", choice))
        .conversation.chosen_tool;
  };
  CHECK(chosen(R"({"type":"function","name":"find"})") == "find");
  CHECK(chosen(R"({"type":"custom","name":"do"})") == "a__do");
  CHECK(chosen(R"({"type":"function","name":"go","namespace":"b"})") == "b__go");
  CHECK(chosen(R"({"type":"function","name":"b__go"})") == "b__go");
  const auto refuse = [](std::string_view choice) {
    check_refusal(fmt::format(R"({{"input":"x","tools":[{}],"tool_choice":{}}})", kNamespaces, choice), 400,
                  "tool_choice");
  };
  refuse(R"({"type":"function","name":"go"})");
  refuse(R"({"type":"function","name":"stay"})");
  refuse(R"({"type":"web_search"})");
  refuse(R"({"type":"allowed_tools","mode":"never","tools":[]})");
  refuse(R"({"type":"allowed_tools","mode":"required","tools":[{"type":"web_search"}]})");
  refuse(R"({"type":"function","name":"do"})");
  refuse(R"({"type":"custom","name":"go","namespace":"b"})");
  refuse(R"({"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"do"}]})");
  refuse(R"("perhaps")");
  check_refusal(R"({"input":"x","tool_choice":"required","tools":[{"type":"web_search"}]})", 400, "tool_choice");
  check_refusal(R"({"input":"x","tool_choice":{"type":"function","name":"f"}})", 400, "tool_choice");
}

TEST_CASE("Allowed tools restrict what may be called only") {
  const ResponsesRequest request = with_tools(
      fmt::format("{},{}", kSearch, kNamespaces),
      R"(,"tool_choice":{"type":"allowed_tools","mode":"required","tools":[{"type":"function","name":"find"}]})");
  REQUIRE(request.conversation.tools.size() == 1);
  CHECK(request.conversation.tools[0].name == "find");
  CHECK(request.conversation.restricts_tools);
  CHECK(request.conversation.tool_choice == ToolChoice::kRequired);
  CHECK_THAT(request.conversation.tools_json, Catch::Contains("b__go"));
}

TEST_CASE("Tools are shown where none of them may be called") {
  const ResponsesRequest request =
      with_tools(kSearch, R"(,"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[{"type":"web_search"}]})");
  CHECK_FALSE(request.conversation.has_tools());
  CHECK(request.conversation.forbids_calls());
  CHECK_THAT(request.conversation.tools_json, Catch::Contains("find"));
}

TEST_CASE("The format of the text is flat") {
  const ResponsesRequest request =
      parsed(R"({"input":"x","text":{"format":{"type":"json_schema","name":"n","schema":{"type":"object"}}}})");
  REQUIRE(request.response_format);
  CHECK(request.response_format->texts == std::vector<std::string>{R"({"type":"object"})"});
  CHECK(parsed(R"({"input":"x","text":{"format":{"type":"json_object"}}})").response_format);
  CHECK_FALSE(parsed(R"({"input":"x","text":{"verbosity":"low","format":{"type":"text"}}})").response_format);
  check_refusal(R"({"input":"x","text":{"format":{"type":"json_schema","json_schema":{"schema":{}}}}})", 400,
                "text.format.schema");
  check_refusal(R"({"input":"x","text":{"format":{"type":"yaml"}}})", 400, "text.format");
  check_refusal(R"({"input":"x","regex":"a","text":{"format":{"type":"json_object"}}})", 400, "text.format");
}

TEST_CASE("Logprobs come with include only") {
  CHECK(parsed(R"({"input":"x","top_logprobs":3})").top_logprobs == -1);
  CHECK(parsed(R"({"input":"x","include":["message.output_text.logprobs"]})").top_logprobs == 0);
  CHECK(
      parsed(R"({"input":"x","top_logprobs":3,"include":["message.output_text.logprobs","a.new.one"]})").top_logprobs ==
      3);
}

TEST_CASE("Members of other APIs are refused by name") {
  for (const char* member : {R"("messages":[])", R"("max_tokens":1)", R"("response_format":{"type":"text"})",
                             R"("reasoning_effort":"low")", R"("conversation":"conv_1")", R"("prompt":{"id":"p"})"}) {
    const std::string_view name = std::string_view(member).substr(1, std::string_view(member).find('"', 1) - 1);
    check_refusal(fmt::format(R"({{"input":"x",{}}})", member), 400, name);
  }
  check_refusal(R"({"input":"x","n":2})", 400, "n");
  check_refusal(R"({"input":"x","background":true,"store":false})", 400, "background");
  check_refusal(R"({"input":"x","truncation":"middle"})", 400, "truncation");
  check_refusal(R"({"input":"x","reasoning":{"effort":"enormous"}})", 400, "reasoning.effort");
  check_refusal(R"({"input":"x","metadata":{"a":1}})", 400, "metadata");
  check_refusal(R"({"input":"x","previous_response_id":"resp_1"})", 400, "previous_response_id");
  check_refusal(R"({"input":[]})", 400, "input");
  check_refusal("{}", 400, "input");
}

TEST_CASE("Members without effect are accepted") {
  const ResponsesRequest request = parsed(
      R"({"input":"x","metadata":{"a":"b"},"user":"u","service_tier":"fast","prompt_cache_key":"k",)"
      R"("prompt_cache_options":{},"max_tool_calls":3,"stream":true,"stream_options":{"include_obfuscation":false},)"
      R"("client_metadata":{"x":1},"context_management":[],"include":["reasoning.encrypted_content"],)"
      R"("reasoning":{"effort":"max","summary":"auto"},"safety_identifier":"s","moderation":{}})");
  CHECK(request.conversation.reasoning_effort == "max");
  CHECK(request.conversation.messages.size() == 1);
  CHECK_THAT(request.echo, Catch::Contains(R"("metadata":{"a":"b"})") && Catch::Contains(R"("tools":[])") &&
                               Catch::Contains(R"("reasoning":{"effort":"max","summary":"auto"})"));
}

TEST_CASE("Recorded requests of agents are accepted") {
  if (read_recorded("codex_turn1").empty()) SKIP_TEST("shared/data/agents is absent");
  for (const char* name : {"codex_turn1", "codex_turn2", "codex_compact", "codex_title", "codex_known_model",
                           "codex_lmstudio_probe", "codex_turn_namespace_history", "owui_responses",
                           "langchain_responses_structured", "langchain_responses_tools"}) {
    INFO(name);
    const ResponsesRequest request = parsed(read_recorded(name));
    CHECK(request.model == "MODEL");
    const auto& messages = request.conversation.messages;
    for (size_t i = 1; i < messages.size(); ++i) CHECK(messages[i].role != "system");
  }
  const ResponsesRequest known = parsed(read_recorded("codex_known_model"));
  CHECK(known.origins.size() == 3);
  CHECK(std::ranges::count_if(known.conversation.tools,
                              [](const openai::Tool& tool) { return tool.input.has_value(); }) == 1);
  const ResponsesRequest history = parsed(read_recorded("codex_turn_namespace_history"));
  CHECK(history.conversation.messages.back().role == "tool");
  CHECK((history.conversation.messages.end() - 2)->tool_calls[0].name == "multi_agent_v1__close_agent");
}
