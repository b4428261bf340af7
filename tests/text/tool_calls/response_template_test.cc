#include "text/tool_calls/response_template.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "support/mentions.h"
#include "support/paths.h"
#include "support/skip.h"
#include "text/json_support.h"
#include "text/chat_template/chat_template.h"
#include "text/tool_calls/parsed_output.h"

using namespace millrace;
using namespace millrace::test;
using namespace millrace::text;

namespace {

OutputFormat described(std::string_view description, std::string_view prompt) {
  OutputFormat format;
  format.reasoning = ReasoningFormat::kThink;
  format.response_template = ResponseTemplate::parse(description).value();
  format.prompt_end = format.response_template->prompt_end(prompt);
  return format;
}

std::string found(std::string_view fields, std::string_view answer) {
  return summary(
      parse_output(described(fmt::format(R"({{"start_anchor":"@","fields":{{{}}}}})", fields), "x@"), answer));
}

std::string refusal(std::string_view description) {
  const auto made = ResponseTemplate::parse(description);
  return made.has_error() ? made.error().message : "no error";
}

std::string normalised_json(std::string_view json) {
  simdjson::dom::parser parser;
  return simdjson::minify(parser.parse(json.data(), json.size()).value());
}

}  // namespace

TEST_CASE("response templates give the recorded messages") {
  const auto file = shared_data_dir() / "agents/response_template_cases.json";
  if (!std::filesystem::exists(file)) SKIP_TEST("no recorded messages");
  simdjson::dom::parser parser;
  const simdjson::dom::array cases = parser.parse(read_file(file));
  size_t count = 0;
  for (const simdjson::dom::element entry : cases) {
    const std::string name = member_text(entry, "name");
    INFO(name);
    OutputFormat format = described(member_json(entry, "template"), member_text(entry, "prefix"));
    simdjson::dom::array tools;
    if (entry["tools"].get(tools) == simdjson::SUCCESS) {
      auto types = std::make_shared<ParameterTypes>();
      for (const simdjson::dom::element tool : tools) {
        const simdjson::dom::element function = tool["function"];
        types->add(member_text(function, "name"), member_json(function, "parameters"));
      }
      format.parameter_types = std::move(types);
    }
    const std::string text = member_text(entry, "text");
    const OutputPart whole = parse_output(format, text);
    ++count;
    simdjson::dom::element message;
    if (entry["message"].get(message) != simdjson::SUCCESS) {
      // What cannot be read is content.
      CHECK(whole.content == text);
      continue;
    }
    // A stream has sent the content that a later region replaces.
    const bool replaces = name.find("wipes") != std::string::npos;
    CHECK(whole.content == (replaces ? "One moment." : member_text(message, "content")));
    CHECK(whole.reasoning == member_text(message, "thinking"));
    simdjson::dom::array calls;
    if (message["tool_calls"].get(calls) != simdjson::SUCCESS) continue;
    REQUIRE(whole.calls.size() == calls.size());
    for (size_t i = 0; i < calls.size(); ++i) {
      const simdjson::dom::element function = calls.at(i)["function"];
      CHECK(whole.calls[i].name == member_text(function, "name"));
      CHECK(normalised_json(whole.calls[i].arguments) == normalised_json(member_json(function, "arguments")));
    }
  }
  CHECK(count >= 9);
}

TEST_CASE("regions open and close as declared") {
  constexpr const char* kCalls =
      R"("tool_calls":{"open_pattern":"<call (?P<name>\\w+)>","close":["</call>","</call>\n"],"content":"kv-lines",)"
      R"("repeats":true,"transform":{"function":{"name":"{name}","arguments":"{content}"}}})";
  const std::string fields = fmt::format(R"({},"content":{{"close":"<end>"}})", kCalls);
  CHECK(found(fields, "Hi.<call f>a: 1\nb:x y</call>\n<end>") == R"(Hi. {f: {"a":"1","b":"x y"}})");
  CHECK(found(fields, "<call f>a: 1") == R"( {f: {"a":"1"}})");
  CHECK(found(fields, "a <cal") == "a <cal");
  CHECK(found(fields, "a <call f") == "a <call f");
  // Text outside of all fields goes nowhere.
  CHECK(found(kCalls, "lost<call f></call>") == " {f: {}}");
  constexpr const char* kEach =
      R"("tool_calls":{"open":"<<","close":">>","content":"json","transform_each":{"name":"{n}","arguments":"{a}"}},)"
      R"("content":{})";
  CHECK(found(kEach, R"(<<[{"n":"f","a":{"x":1}},{"n":"g","a":{}}]>>!)") == R"(! {f: {"x":1}} {g: {}})");
  CHECK(found(kEach, "<<nothing>>") == "<<nothing>>");
}

TEST_CASE("what a response template may not say") {
  CHECK_THAT(refusal(R"([])"), Mentions("response_template"));
  CHECK_THAT(refusal(R"({"fields":{"content":{}}})"), Mentions("start_anchor"));
  CHECK_THAT(refusal(R"({"start_anchor":"a","fields":{}})"), Mentions("fields"));
  CHECK_THAT(refusal(R"({"start_anchor":"a","more":1,"fields":{"content":{}}})"), Mentions("more"));
  CHECK_THAT(refusal(R"({"version":2,"start_anchor":"a","fields":{"content":{}}})"), Mentions("version"));
  CHECK_THAT(refusal(R"({"start_anchor":"a","fields":{"content":{},"other":{}}})"), Mentions("other"));
  CHECK_THAT(refusal(R"x({"start_anchor":"a","fields":{"x":{"open_pattern":"("}}})x"), Mentions("x"));
  CHECK_THAT(refusal(R"x({"start_anchor":"a","fields":{"x":{"open_pattern":"(?P<n>a)"}}})x"), Mentions("transform"));
  CHECK_THAT(refusal(R"({"start_anchor":"a","fields":{"x":{"open":"b","content":"yaml"}}})"), Mentions("content"));
}

TEST_CASE("the config of a model declares a response template") {
  constexpr const char* kConfig =
      R"({"chat_template":"{{ messages }}","response_template":{"start_anchor":"a","fields":{"content":{}}}})";
  const auto made = ChatTemplate::from_source({}, kConfig).value();
  REQUIRE(made->response_template() != nullptr);
  CHECK(made->response_template()->has(ResponseTemplate::Target::kContent));
  const auto broken = ChatTemplate::from_source({}, R"({"chat_template":"x","response_template":{"fields":1}})");
  CHECK(broken.value()->response_template() == nullptr);
}
