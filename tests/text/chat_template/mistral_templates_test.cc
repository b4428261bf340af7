#include "text/chat_template/mistral_templates.h"

#include <catch2/catch.hpp>

#include "base/json_value.h"
#include "base/text_file.h"
#include "support/paths.h"
#include "text/chat_template/chat_template.h"

using namespace millrace;
using namespace millrace::text;

namespace {

TekkenFormat format_of(int version) {
  if (version < 15) return {.version = version};
  return {.version = version, .efforts = {"none", "high"}, .default_effort = "none"};
}

std::shared_ptr<const ChatTemplate> made(int version, bool thinks) {
  const auto source = mistral_template(format_of(version), thinks);
  REQUIRE(source);
  return ChatTemplate::with_tokens(*source, {{"bos_token", "<s>"}, {"eos_token", "</s>"}}).value();
}

}  // namespace

TEST_CASE("conversations of tekken.json are those of mistral_common") {
  const std::string text = read_text_file(test::source_dir() / "tests/text/mistral_chats.json").value();
  const JsonDocument document = JsonDocument::parse(text).value();
  JsonArray cases;
  REQUIRE(document.root().get(cases));
  REQUIRE(cases.size() == 60);
  for (const JsonValue each : cases) {
    int64_t version = 0;
    std::string_view wanted;
    REQUIRE((each["version"].get(version) && each["text"].get(wanted)));
    const std::string messages = to_json(each["messages"]);
    const std::string tools = to_json(each["tools"]);
    ChatInput input;
    input.messages_json = messages;
    input.tools_json = tools;
    input.add_generation_prompt = true;
    (void)each["effort"].get(input.reasoning_effort);
    CAPTURE(version, messages);
    CHECK(made(static_cast<int>(version), version >= 13)->render(input).value() == wanted);
  }
}

TEST_CASE("templates of tekken.json have the formats of their versions") {
  CHECK(made(3, false)->tool_format() == ToolFormat::kMistral);
  CHECK(made(15, true)->tool_format() == ToolFormat::kMistralV13);
  CHECK(made(15, true)->reasoning_format() == ReasoningFormat::kMistral);
  CHECK(made(7, false)->tool_format() == ToolFormat::kMistral);
  CHECK(made(11, false)->tool_format() == ToolFormat::kMistralV11);
  CHECK(made(13, false)->tool_format() == ToolFormat::kMistralV13);
  CHECK(made(13, true)->tool_format() == ToolFormat::kMistralV13);
  CHECK_FALSE(made(13, false)->reasoning_format());
  CHECK(made(13, true)->reasoning_format() == ReasoningFormat::kMistral);
  for (const int version : {0, 1, 2, 8, 14, 16}) CHECK_FALSE(mistral_template(format_of(version), true));
}

TEST_CASE("a template of tekken.json refuses roles that it lacks") {
  ChatInput input;
  input.messages_json = R"([{"role": "critic", "content": "a"}])";
  const auto rendered = made(13, false)->render(input);
  REQUIRE(rendered.has_error());
  CHECK(rendered.error().message.find("critic") != std::string::npos);
  input.messages_json = R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])";
  input.continue_final_message = true;
  CHECK(made(13, false)->render(input).value() == "<s>[INST]a[/INST]b");
}

TEST_CASE("settings of tekken.json follow the effort") {
  ChatInput input;
  input.messages_json = R"([{"role": "user", "content": "a"}])";
  const auto settings = [&](std::string_view effort, std::optional<bool> thinks) {
    input.reasoning_effort = effort;
    input.enable_thinking = thinks;
    const std::string text = made(15, true)->render(input).value();
    return text.substr(3, text.find("[INST]") - 3);
  };
  const std::string none = R"([MODEL_SETTINGS]{"reasoning_effort": "none"}[/MODEL_SETTINGS])";
  const std::string high = R"([MODEL_SETTINGS]{"reasoning_effort": "high"}[/MODEL_SETTINGS])";
  CHECK(settings("", std::nullopt) == none);
  CHECK(settings("", true) == high);
  CHECK(settings("none", false) == none);
  // Words that the file lacks become the nearest that it has.
  for (const char* word : {"medium", "high", "max"}) CHECK(settings(word, true) == high);
  const auto plain = mistral_template({.version = 15}, true);
  CHECK(
      ChatTemplate::with_tokens(*plain, {{"bos_token", "<s>"}, {"eos_token", "</s>"}}).value()->render(input).value() ==
      "<s>[INST]a[/INST]");
}
