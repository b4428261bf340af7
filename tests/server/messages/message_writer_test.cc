#include "sched/plan/finish_reason.h"
#include "server/messages/message_writer.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <simdjson.h>

#include "server/messages/message_members.h"
#include "support/paths.h"
#include "support/skip.h"

using namespace millrace;
using namespace millrace::server;
using messages::MessageWriter;
using simdjson::dom::element;

namespace {

const openai::ResponseInfo kInfo{.kind = openai::ResponseKind::kChat, .id = "msg_1", .model = "MODEL"};
const openai::Usage kUsage{.prompt_tokens = 12, .completion_tokens = 5, .cached_tokens = 8};
const TokenizedPrompt kPrompt;

ChoiceDelta text_delta(std::string text) {
  ChoiceDelta delta;
  delta.text = std::move(text);
  return delta;
}

ChoiceDelta call_delta(uint32_t index, std::string id, std::string name, std::string arguments) {
  ChoiceDelta delta;
  delta.calls.push_back(
      {.index = index, .id = std::move(id), .name = std::move(name), .arguments = std::move(arguments)});
  return delta;
}

ChoiceDelta finished(ChoiceDelta delta, sched::FinishReason reason = sched::FinishReason::kStop) {
  delta.finish = reason;
  delta.has_tool_calls = !delta.calls.empty();
  return delta;
}

void append_all(MessageWriter& writer, std::string& out, const std::vector<ChoiceDelta>& deltas) {
  openai::Usage so_far = kUsage;
  so_far.completion_tokens = 1;
  writer.append_start(out, so_far);
  for (const ChoiceDelta& delta : deltas) writer.append_delta(out, {0, delta, kPrompt}, {});
}

std::string stream_of(const std::vector<ChoiceDelta>& deltas, uint32_t max_tokens = 100) {
  std::string out;
  MessageWriter writer(kInfo, max_tokens);
  append_all(writer, out, deltas);
  writer.append_end(out, kUsage);
  return out;
}

/// Returns whether two values are equal, whatever the order of members and the texts of signatures.
bool is_same(element a, element b) {
  if (a.is_object() && b.is_object()) {
    if (a.get_object().value().size() != b.get_object().value().size()) return false;
    for (const auto member : a.get_object()) {
      element other;
      if (b[member.key].get(other) != simdjson::SUCCESS) return false;
      if (member.key != "signature" && !is_same(member.value, other)) return false;
    }
    return true;
  }
  if (a.is_array() && b.is_array()) {
    if (a.get_array().value().size() != b.get_array().value().size()) return false;
    for (size_t i = 0; i < a.get_array().value().size(); ++i) {
      if (!is_same(a.at(i), b.at(i))) return false;
    }
    return true;
  }
  return std::string(simdjson::minify(a)) == std::string(simdjson::minify(b));
}

/// Compares a stream with the recorded events of `name`.
void check_recorded(const std::string& name, const std::string& stream) {
  const auto path = test::shared_data_dir() / "agents" / ("events_messages_" + name + ".json");
  if (!std::filesystem::exists(path)) SKIP_TEST("the shared data folder is absent");
  simdjson::dom::parser parser;
  const element recorded = parser.load(path.string());
  size_t at = 0;
  for (const element event : recorded["events"].get_array()) {
    CAPTURE(name, stream.substr(at, 200));
    const std::string head = "event: " + std::string(event["type"].get_string().value()) + "\ndata: ";
    REQUIRE(stream.compare(at, head.size(), head) == 0);
    const size_t end = stream.find("\n\n", at);
    REQUIRE(end != std::string::npos);
    const std::string data = stream.substr(at + head.size(), end - at - head.size());
    simdjson::dom::parser own_parser;
    const element own = own_parser.parse(data);
    CHECK(is_same(own, event));
    at = end + 2;
  }
  CHECK(at == stream.size());
}

std::string whole_of(ChoiceDelta content, uint32_t max_tokens = 100) {
  std::string out;
  const openai::ChoiceView view{0, content, kPrompt};
  MessageWriter(kInfo, max_tokens).append_response(out, {&view, 1}, kUsage);
  return out;
}

}  // namespace

TEST_CASE("Streams of messages have the recorded events") {
  using sched::FinishReason;
  check_recorded("text", stream_of({text_delta("Hello "), finished(text_delta("there"))}));
  check_recorded("max_tokens", stream_of({finished(text_delta("a"), FinishReason::kLength)}, 5));
  ChoiceDelta stopped = finished(text_delta("a"));
  stopped.stop_text = "END";
  check_recorded("stop_sequence", stream_of({stopped}));
  ChoiceDelta thinking;
  thinking.reasoning = "look first";
  check_recorded("thinking_tool",
                 stream_of({thinking, text_delta("One moment."), call_delta(0, "toolu_1", "Bash", "{\"command\":"),
                            call_delta(0, "", "", " \"ls\"}"), finished(call_delta(1, "toolu_2", "Now", "{}"))}));
  std::string failed;
  MessageWriter writer(kInfo, 100);
  append_all(writer, failed, {text_delta("a")});
  writer.append_failure(failed, {503, "the ring broke", ""});
  check_recorded("error_midway", failed);
}

TEST_CASE("A message without text is one empty text block") {
  const std::string stream = stream_of({finished({})});
  CHECK(stream.find(R"("content_block":{"type":"text","text":""})") != std::string::npos);
  CHECK(stream.find("content_block_delta") == std::string::npos);
  CHECK(whole_of(finished({})).find(R"("content":[{"type":"text","text":""}])") != std::string::npos);
}

TEST_CASE("A call without arguments has an empty object") {
  const std::string stream = stream_of({finished(call_delta(0, "call_1", "Now", ""))});
  CHECK(stream.find(R"("id":"toolu_1","name":"Now","input":{}})") != std::string::npos);
  CHECK(stream.find(R"("delta":{"type":"input_json_delta","partial_json":"{}"})") != std::string::npos);
  CHECK(whole_of(finished(call_delta(0, "call_1", "Now", ""))).find(R"("input":{})") != std::string::npos);
}

TEST_CASE("One event may end a call and begin text and the next") {
  ChoiceDelta merged = call_delta(0, "", "", "1}");
  merged.calls.push_back({.index = 1, .id = "b", .name = "g", .arguments = "{}", .text_before = 3});
  merged.text = "and";
  const std::string stream = stream_of({call_delta(0, "a", "f", "{\"x\":"), finished(std::move(merged))});
  const size_t rest = stream.find(R"("index":0,"delta":{"type":"input_json_delta","partial_json":"1}"})");
  const size_t text = stream.find(R"("index":1,"delta":{"type":"text_delta","text":"and"})");
  const size_t next = stream.find(R"("index":2,"content_block":{"type":"tool_use","id":"b","name":"g")");
  REQUIRE(rest != std::string::npos);
  REQUIRE(text != std::string::npos);
  CHECK(rest < text);
  CHECK(text < next);
}

TEST_CASE("The stop reason goes by length then calls then stops") {
  using sched::FinishReason;
  struct Case {
    FinishReason finish;
    bool has_calls;
    bool has_open_call;
    const char* stop_text;
    uint32_t max_tokens;
    const char* reason;
  };
  const std::vector<Case> cases = {
      {FinishReason::kStop, false, false, "", 100, "end_turn"},
      {FinishReason::kStop, false, false, "END", 100, "stop_sequence"},
      {FinishReason::kStop, true, false, "", 100, "tool_use"},
      {FinishReason::kStop, true, true, "", 100, "tool_use"},
      {FinishReason::kStop, true, false, "END", 100, "tool_use"},
      {FinishReason::kStop, true, true, "END", 100, "stop_sequence"},
      {FinishReason::kLength, true, true, "", 5, "max_tokens"},
      {FinishReason::kLength, false, false, "", 6, "model_context_window_exceeded"},
      {FinishReason::kAbort, false, false, "", 100, "max_tokens"},
  };
  for (const Case& each : cases) {
    ChoiceDelta content;
    content.finish = each.finish;
    content.has_tool_calls = each.has_calls;
    content.has_open_call = each.has_open_call;
    content.stop_text = each.stop_text;
    CAPTURE(each.reason);
    CHECK(messages::stop_reason(content, kUsage, each.max_tokens) == each.reason);
  }
}

TEST_CASE("The input of a call is an object whatever was written") {
  CHECK(messages::tool_input(R"({"a": [1, 2]})") == R"({"a":[1,2]})");
  CHECK(messages::tool_input("") == "{}");
  CHECK(messages::tool_input(" \n") == "{}");
  CHECK(messages::tool_input(R"({"a": "cut o)") == R"({"a":"cut o"})");
  CHECK(messages::tool_input(R"({"a": 1, "b)") == R"({"a":1})");
  CHECK(messages::tool_input("[1]") == R"({"arguments":"[1]"})");
  CHECK(messages::tool_input("look \"there\"") == R"({"arguments":"look \"there\""})");
}
