#include "server/messages/request.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "support/mentions.h"
#include "support/paths.h"
#include "support/skip.h"
#include "text/json_support.h"

using namespace millrace;
using namespace millrace::server;
using millrace::test::Mentions;
using openai::ChatMessage;
using openai::ChatRequest;

namespace {

const openai::RequestLimits kMessageLimits{.vocab_size = 1000, .max_choices = 64};
constexpr const char* kHello = R"("messages":[{"role":"user","content":"c"}])";
constexpr const char* kLookTool = R"({"name":"look","description":"Looks.","input_schema":{"type":"object"}})";

openai::ApiResult<ChatRequest> parse(const std::string& members, std::string_view messages = kHello) {
  return messages::parse_message_request(
      fmt::format(R"({{"model":"m","max_tokens":5000,{}{}{}}})", messages, members.empty() ? "" : ",", members),
      kMessageLimits);
}

/// Returns the param of the refusal, or "ok".
std::string outcome(const std::string& members, std::string_view messages = kHello) {
  const auto parsed = parse(members, messages);
  return parsed.has_error() ? parsed.error().param : "ok";
}

ChatRequest parse_ok(const std::string& members, std::string_view messages = kHello) {
  auto parsed = parse(members, messages);
  INFO(members << " " << messages);
  if (parsed.has_error()) FAIL(parsed.error().message);
  return *std::move(parsed);
}

/// Returns the conversation in one line per message.
std::string lines_of(const openai::Conversation& conversation) {
  std::string lines;
  for (const ChatMessage& message : conversation.messages) {
    lines += message.role + ':';
    if (!message.tool_call_id.empty()) lines += '<' + message.tool_call_id + '>';
    if (!message.reasoning.empty()) lines += '(' + message.reasoning + ')';
    lines += message.content;
    for (const auto& call : message.tool_calls) lines += fmt::format("[{} {} {}]", call.id, call.name, call.arguments);
    lines += '|';
  }
  return lines;
}

std::string conversation_of(const std::string& messages, const std::string& members = {}) {
  return lines_of(parse_ok(members, fmt::format(R"("messages":[{}])", messages)).conversation);
}

/// Returns the param of a refused user's block.
std::string block_outcome(const std::string& block, const std::string& role = "user") {
  return outcome("", fmt::format(R"("messages":[{{"role":"{}","content":[{}]}}])", role, block));
}

}  // namespace

TEST_CASE("A message needs a model messages and max_tokens") {
  const auto missing = [](const char* body) {
    return messages::parse_message_request(body, kMessageLimits).error().param;
  };
  CHECK(missing(R"({"max_tokens":1,"messages":[{"role":"user","content":"c"}]})") == "model");
  CHECK(missing(R"({"model":"m","messages":[{"role":"user","content":"c"}]})") == "max_tokens");
  CHECK(missing(R"({"model":"m","max_tokens":1})") == "messages");
  CHECK(missing(R"({"model":"m","max_tokens":1,"messages":[]})") == "messages");
  CHECK(missing(R"({"model":"m","max_tokens":0,"messages":[{"role":"user","content":"c"}]})") == "max_tokens");
  CHECK(missing("[]").empty());
  const std::string count = fmt::format(R"({{"model":"m",{}}})", kHello);
  CHECK(messages::parse_count_request(count, kMessageLimits).has_value());
  CHECK(messages::parse_count_request(R"({"model":"m"})", kMessageLimits).error().param == "messages");
}

TEST_CASE("Fields of a message keep their bounds") {
  struct Case {
    const char* name;
    std::vector<const char*> good;
    std::vector<const char*> bad;
  };
  const std::vector<Case> cases = {
      {"temperature", {"0", "1", "null"}, {"-0.1", "2.1", "\"1\""}},
      {"top_p", {"0", "1"}, {"1.1"}},
      {"top_k", {"0", "40"}, {"-1", "0.5"}},
      {"stop_sequences", {"[]", "[\"END\"]", "null"}, {"\"END\"", "[\"\"]", "[1]"}},
      {"stream", {"true"}, {"1"}},
      {"system",
       {"\"s\"", "[]", R"([{"type":"text","text":"s","cache_control":{"type":"ephemeral"}}])"},
       {"5", "[5]", R"([{"type":"image"}])", R"([{"type":"text"}])"}},
      {"thinking",
       {R"({"type":"adaptive","display":"omitted"})", R"({"type":"disabled"})", R"({"type":"between_tools"})",
        R"({"type":"enabled","budget_tokens":1024})"},
       {R"({"type":"enabled"})", R"({"type":"enabled","budget_tokens":1023})", R"({"type":"on"})", "true",
        R"({"type":"enabled","budget_tokens":5000})"}},
      {"output_config",
       {"{}", R"({"effort":"max"})", R"({"effort":null,"format":null})"},
       {R"({"effort":"none"})", R"({"effort":5})", R"({"format":{}})", R"({"format":{"type":"text"}})",
        R"({"format":{"type":"json_schema"}})"}},
      {"metadata", {R"({"user_id":"u"})", "5"}, {}},
      {"service_tier", {"\"auto\""}, {}},
      {"context_management", {"{}"}, {}},
      {"tool_choice",
       {R"({"type":"auto"})", R"({"type":"none"})"},
       {R"({"type":"any"})", R"({"type":"tool","name":"look"})", R"({"type":"some"})", "\"auto\"",
        R"({"type":"auto","disable_parallel_tool_use":1})"}},
  };
  for (const Case& each : cases) {
    for (const char* value : each.good) {
      INFO(each.name << " " << value);
      CHECK(outcome(fmt::format("\"{}\":{}", each.name, value)) == "ok");
    }
    for (const char* value : each.bad) {
      INFO(each.name << " " << value);
      const std::string found = outcome(fmt::format("\"{}\":{}", each.name, value));
      CHECK(found.substr(0, found.find_first_of(".[")) == each.name);
    }
  }
}

TEST_CASE("Fields of a message mean what a chat says") {
  const ChatRequest request = parse_ok(
      R"("temperature":0.5,"top_k":3,"stop_sequences":["A","B"],"stream":true,"output_config":{"effort":"xhigh"})");
  CHECK(request.temperature == 0.5f);
  CHECK(request.top_k == 3);
  CHECK(request.stop == std::vector<std::string>{"A", "B"});
  CHECK(request.stream);
  CHECK(request.fills_context);
  CHECK(request.max_tokens == 5000u);
  CHECK(request.conversation.reasoning_effort == "xhigh");
  CHECK_FALSE(request.conversation.enable_thinking.has_value());
  CHECK(parse_ok(R"("thinking":{"type":"adaptive"})").conversation.enable_thinking == true);
  const auto disabled = parse_ok(R"("thinking":{"type":"disabled"},"output_config":{"effort":"high"})").conversation;
  CHECK(disabled.enable_thinking == false);
  CHECK(disabled.reasoning_effort == "none");
  for (const char* field : {"output_format", "output_config"}) {
    const std::string format = R"({"type":"json_schema","schema":{"type":"object"}})";
    const bool is_nested = std::string_view(field) == "output_config";
    const auto formatted =
        parse_ok(fmt::format(R"("{}":{})", field, is_nested ? R"({"format":)" + format + '}' : format));
    REQUIRE(formatted.response_format.has_value());
    CHECK(formatted.response_format->kind == openai::ResponseFormat::Kind::kJsonSchema);
    CHECK(formatted.response_format->texts == std::vector<std::string>{R"({"type":"object"})"});
  }
}

TEST_CASE("A budget may exceed max_tokens only between tools") {
  const std::string budget = R"("thinking":{"type":"enabled","budget_tokens":6000})";
  const auto refused = parse(budget);
  REQUIRE(refused.has_error());
  CHECK(refused.error().param == "thinking");
  CHECK_THAT(refused.error().message, Mentions("6000", "5000"));
  CHECK(outcome(fmt::format(R"({},"tools":[{}])", budget, kLookTool)) == "ok");
}

TEST_CASE("Texts of a message become one in every form") {
  CHECK(conversation_of(R"({"role":"user","content":"a"})") == "user:a|");
  CHECK(conversation_of(R"({"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]})") ==
        "user:a\nb|");
  CHECK(conversation_of(R"({"role":"user","content":""})") == "user:|");
  // Neighbours of one role are one turn.
  CHECK(conversation_of(R"({"role":"user","content":"a"},{"role":"user","content":"b"})") == "user:a\nb|");
  CHECK(conversation_of(R"({"role":"user","content":[{"type":"document","title":"T","source":{"type":"text",)"
                        R"("media_type":"text/plain","data":"d"}},{"type":"search_result","title":"S","source":"u",)"
                        R"("content":[{"type":"text","text":"r"}]}]})") == "user:T\nd\nS\nu\nr|");
  CHECK(conversation_of(R"({"role":"user","content":[{"type":"document","context":"C","source":{"type":"content",)"
                        R"("content":[{"type":"text","text":"d"}]}}]})") == "user:C\nd|");
}

TEST_CASE("System messages are the same as text or blocks") {
  const std::string user = R"({"role":"user","content":"a"})";
  const std::string text = R"("system":"s")";
  const std::string blocks = R"("system":[{"type":"text","text":"s","cache_control":{"type":"ephemeral"}}])";
  CHECK(conversation_of(user, text) == "system:s|user:a|");
  CHECK(conversation_of(user, blocks) == "system:s|user:a|");
  const std::string late_text = user + R"(,{"role":"system","content":"late"})";
  const std::string late_blocks = user + R"(,{"role":"system","content":[{"type":"text","text":"late"}]})";
  CHECK(conversation_of(late_text, text) == "system:s|user:a|system:late|");
  CHECK(conversation_of(late_blocks, text) == "system:s|user:a|system:late|");
  const std::string attribution = R"({"type":"text","text":"x-anthropic-billing-header: cc_version=1; cch=0a1b2;"})";
  CHECK(conversation_of(user, fmt::format(R"("system":[{},{{"type":"text","text":"s"}}])", attribution)) ==
        "system:s|user:a|");
  CHECK(conversation_of(user, fmt::format(R"("system":[{}])", attribution)) == "user:a|");
  CHECK(conversation_of(fmt::format(R"({},{{"role":"system","content":[{}]}})", user, attribution)) == "user:a|");
}

TEST_CASE("Results of tools come before the text of their message") {
  const std::string call =
      R"({"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"x"},)"
      R"({"type":"redacted_thinking","data":"x"},{"type":"text","text":"I look."},)"
      R"({"type":"tool_use","id":"t1","name":"look","input":{"at": "it"}},{"type":"server_tool_use","id":"s"}]})";
  const std::string result = R"({"role":"user","content":[{"type":"text","text":"Go on."},)"
                             R"({"type":"tool_result","tool_use_id":"t1","content":"seen"},)"
                             R"({"type":"tool_result","tool_use_id":"t2","content":[{"type":"text","text":"x"}]}]})";
  const std::string ask = R"({"role":"user","content":"a"})";
  CHECK(conversation_of(fmt::format("{},{},{}", ask, call, result)) ==
        "user:a|assistant:(hm)I look.[t1 look {\"at\":\"it\"}]|tool:<t1>seen|tool:<t2>x|user:Go on.|");
  const auto with = [&](const char* members) {
    return conversation_of(
        fmt::format(R"({{"role":"user","content":[{{"type":"tool_result","tool_use_id":"t"{}}}]}})", members));
  };
  CHECK(with("") == "tool:<t>|");
  CHECK(with(R"(,"content":null,"is_error":false)") == "tool:<t>|");
  CHECK(with(R"(,"content":"no file","is_error":true)") == "tool:<t>Error: no file|");
  CHECK(with(R"(,"content":"Error 5","is_error":true)") == "tool:<t>Error 5|");
  CHECK(with(R"(,"is_error":true)") == "tool:<t>Error|");
}

TEST_CASE("A call without input has no arguments") {
  for (const char* input : {"", R"(,"input":null)", R"(,"input":{})"}) {
    CHECK(
        conversation_of(fmt::format(R"({{"role":"assistant","content":[{{"type":"tool_use","id":"t","name":"f"{}}}]}},)"
                                    R"({{"role":"user","content":"c"}})",
                                    input)) == "assistant:[t f {}]|user:c|");
  }
}

TEST_CASE("An assistant at the end is continued") {
  const auto request = parse_ok("", R"("messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}])");
  CHECK(request.conversation.continue_final_message);
  CHECK_FALSE(request.conversation.add_generation_prompt);
  CHECK_FALSE(parse_ok("").conversation.continue_final_message);
  CHECK(
      outcome("",
              R"("messages":[{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{}}]}])") ==
      "messages");
}

TEST_CASE("An answer may have blocks of types that are new") {
  const auto parsed = parse("", R"("messages":[{"role":"user","content":"q"},{"role":"assistant","content":[)"
                                R"({"type":"compaction","content":"So far."},{"type":"surprise","text":"x"},)"
                                R"({"type":"text","text":"Yes."}]},{"role":"user","content":"r"}])");
  REQUIRE(parsed.has_value());
  CHECK(parsed->conversation.messages[1].content == "So far.\nYes.");
}

TEST_CASE("Blocks that are no text are refused by name") {
  CHECK(block_outcome(R"({"type":"image","source":{"type":"base64"}})") == "messages[0].content[0]");
  const auto image = parse("", R"("messages":[{"role":"user","content":[{"type":"image"}]}])");
  CHECK(image.error().status == 400);
  CHECK_THAT(image.error().message, Mentions("messages[0].content[0]", "image"));
  CHECK(block_outcome(R"({"type":"document","source":{"type":"base64","data":""}})") == "messages[0].content[0]");
  CHECK(block_outcome(R"({"type":"document","source":{"type":"fax"}})") == "messages[0].content[0].source");
  CHECK(block_outcome(R"({"type":"document"})") == "messages[0].content[0].source");
  CHECK(block_outcome(R"({"type":"tool_use","id":"i","name":"f","input":{}})") == "messages[0].content[0]");
  CHECK(block_outcome(R"({"type":"tool_result"})") == "messages[0].content[0].tool_use_id");
  CHECK(block_outcome(R"({"type":"image"})", "assistant") == "messages[0].content[0]");
  CHECK(block_outcome(R"({"type":"tool_result","tool_use_id":"i","content":[{"type":"surprise"}]})") ==
        "messages[0].content[0].content[0]");
  CHECK(block_outcome(R"({"type":"tool_use","id":"i","name":"f","input":"{}"})", "assistant") ==
        "messages[0].content[0].input");
  CHECK(block_outcome(R"({"type":"thinking"})", "assistant") == "messages[0].content[0].thinking");
  CHECK(block_outcome(R"({"type":"surprise"})") == "messages[0].content[0]");
  CHECK(block_outcome(R"({"type":"tool_result","tool_use_id":"i"})", "assistant") == "messages[0].content[0]");
  CHECK(block_outcome(R"({"text":"a"})") == "messages[0].content[0].type");
  CHECK(block_outcome("5") == "messages[0].content[0]");
  CHECK(outcome("", R"("messages":[{"role":"tool","content":"a"}])") == "messages[0].role");
  CHECK(outcome("", R"("messages":[{"content":"a"}])") == "messages[0].role");
  CHECK(outcome("", R"("messages":[{"role":"user"}])") == "messages[0].content");
}

TEST_CASE("Image blocks of tools and of earlier messages become notes") {
  const std::string note = "[image left out: this model reads text only]";
  const std::string pdf = R"({"type":"document","title":"T","source":{"type":"base64","data":"aGk="}})";
  const std::string image = R"({"type":"image","source":{"type":"base64","media_type":"image/png","data":"aGk="}})";
  const auto result = [&](const std::string& blocks, const std::string& more = "") {
    return conversation_of(fmt::format(
        R"({{"role":"user","content":[{{"type":"tool_result","tool_use_id":"t","content":[{}]}}{}]}})", blocks, more));
  };
  CHECK(result(image) == "tool:<t>" + note + "|");
  CHECK(result(R"({"type":"text","text":"a"},)" + image + "," + image) == "tool:<t>a\n" + note + "\n" + note + "|");
  CHECK(result(R"({"type":"document","source":{"type":"content","content":[{"type":"image"}]}})") ==
        "tool:<t>" + note + "|");
  // Claude Code puts the pages that it read next to the result.
  CHECK(result(R"({"type":"text","text":"a"})", "," + pdf + "," + image) ==
        "tool:<t>a|user:T\n[document left out: this model reads text only]\n" + note + "|");
  const std::string asked =
      fmt::format(R"({{"role":"user","content":[{}]}},{{"role":"assistant","content":"b"}})", image);
  CHECK(conversation_of(asked + R"(,{"role":"user","content":"c"})") == "user:" + note + "|assistant:b|user:c|");
  // The assistant's text is the beginning of the answer to the image.
  CHECK(outcome("", fmt::format(R"("messages":[{}])", asked)) == "messages[0].content[0]");
}

TEST_CASE("Tools are shown as functions and server tools left out") {
  const auto conversation =
      parse_ok(fmt::format(R"("tools":[{},{{"type":"web_search_20250305","name":"web_search"}}])", kLookTool))
          .conversation;
  REQUIRE(conversation.tools.size() == 1);
  CHECK(conversation.tools[0].name == "look");
  CHECK(conversation.tools[0].parameters == R"({"type":"object"})");
  CHECK(conversation.tools_json == R"([{"type":"function","function":{"name":"look","description":"Looks.",)"
                                   R"("parameters":{"type":"object"}}}])");
  const std::string tools = fmt::format(R"("tools":[{}],"tool_choice":)", kLookTool);
  using openai::ToolChoice;
  CHECK(parse_ok(tools + R"({"type":"any"})").conversation.tool_choice == ToolChoice::kRequired);
  CHECK(parse_ok(tools + R"({"type":"none"})").conversation.tool_choice == ToolChoice::kNone);
  const ChatRequest named = parse_ok(tools + R"({"type":"tool","name":"look","disable_parallel_tool_use":true})");
  CHECK(named.conversation.tool_choice == ToolChoice::kNamed);
  CHECK(named.conversation.chosen_tool == "look");
  CHECK_FALSE(named.parallel_tool_calls);
  CHECK(outcome(tools + R"({"type":"tool","name":"listen"})") == "tool_choice");
  CHECK(outcome(R"("tools":[{"name":"look"}])") == "tools[0].input_schema");
  CHECK(outcome(R"("tools":[{"name":"","input_schema":{}}])") == "tools[0].name");
  CHECK(outcome(R"("tools":[{"name":"f","input_schema":{},"strict":true}])") == "tools[0]");
  CHECK(parse_ok(R"("tools":[{"name":"f","input_schema":{"type":"object"},"strict":true}])")
            .conversation.tools[0]
            .is_strict);
}

TEST_CASE("A deferred tool is shown where a result names it") {
  const std::string late = R"({"name":"late","input_schema":{"type":"object"},"defer_loading":true})";
  const std::string both = fmt::format(R"("tools":[{},{}])", kLookTool, late);
  const std::string found =
      R"({"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[)"
      R"({"type":"tool_reference","tool_name":"late"},{"type":"tool_reference","tool_name":"look"}]}]})";
  const ChatRequest request = parse_ok(both, fmt::format(R"("messages":[{}])", found));
  CHECK(request.conversation.tools.size() == 2);
  CHECK(request.conversation.tools_json.find("late") == std::string::npos);
  CHECK(lines_of(request.conversation) ==
        R"(tool:<t>{"type":"function","function":{"name":"late","parameters":{"type":"object"}}})"
        "\nlook|");
  // Nothing of the client's could find it.
  const std::string search = R"({"type":"tool_search_tool_regex_20251119","name":"tool_search_tool_regex"})";
  CHECK(parse_ok(fmt::format(R"("tools":[{},{},{}])", search, kLookTool, late)).conversation.tools_json.find("late") !=
        std::string::npos);
  CHECK(parse_ok(fmt::format(R"("tools":[{}])", late)).conversation.tools_json.find("late") != std::string::npos);
}

TEST_CASE("Requests of Claude Code and LangChain are accepted") {
  const auto folder = test::shared_data_dir() / "agents";
  if (!std::filesystem::exists(folder)) SKIP_TEST("the shared data folder is absent");
  size_t count = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    const std::string name = file.path().filename().string();
    const bool is_message = name.starts_with("claude_code_") || name.starts_with("langchain_anthropic_");
    if (!is_message || name == "claude_code_headers.json") continue;
    CAPTURE(name);
    const std::string body = test::read_file(file.path());
    const bool is_count = name == "claude_code_count_tokens.json";
    const auto parsed = is_count ? messages::parse_count_request(body, kMessageLimits)
                                 : messages::parse_message_request(body, kMessageLimits);
    if (parsed.has_error()) FAIL_CHECK(parsed.error().message);
    if (name == "claude_code_turn2.json") {
      CHECK(lines_of(parsed->conversation) ==
            "system:You are a coding agent.\nRules: be careful.|"
            "user:<system-reminder>\nNo commits.\n</system-reminder>\nWhich files are here?|"
            "system:# Environment\nWorking directory: /src|"
            "assistant:(List the folder.)[toolu_1 Bash {\"command\":\"ls\",\"description\":\"list\"}]|"
            "tool:<toolu_1>a.cc|");
    }
    ++count;
  }
  CHECK(count == 6);
}
