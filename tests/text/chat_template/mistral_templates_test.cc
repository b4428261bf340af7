#include "text/chat_template/mistral_templates.h"

#include <catch2/catch.hpp>

#include "base/json_value.h"
#include "base/text_file.h"
#include "support/paths.h"
#include "text/chat_template/chat_template.h"

using namespace millrace;
using namespace millrace::text;

namespace {

std::shared_ptr<const ChatTemplate> made(int version, bool thinks) {
  const auto source = mistral_template(version, thinks);
  REQUIRE(source);
  return ChatTemplate::with_tokens(*source, {{"bos_token", "<s>"}, {"eos_token", "</s>"}}).value();
}

}  // namespace

TEST_CASE("conversations of tekken.json are those of mistral_common") {
  const std::string text = read_text_file(test::source_dir() / "tests/text/mistral_chats.json").value();
  const JsonDocument document = JsonDocument::parse(text).value();
  JsonArray cases;
  REQUIRE(document.root().get(cases));
  REQUIRE(cases.size() == 36);
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
    CAPTURE(version, messages);
    CHECK(made(static_cast<int>(version), version == 13)->render(input).value() == wanted);
  }
}

TEST_CASE("templates of tekken.json have the formats of their versions") {
  CHECK(made(7, false)->tool_format() == ToolFormat::kMistral);
  CHECK(made(11, false)->tool_format() == ToolFormat::kMistralV11);
  CHECK(made(13, false)->tool_format() == ToolFormat::kMistralV13);
  CHECK(made(13, true)->tool_format() == ToolFormat::kMistralV13);
  CHECK_FALSE(made(13, false)->reasoning_format());
  CHECK(made(13, true)->reasoning_format() == ReasoningFormat::kMistral);
  for (const int version : {0, 1, 2, 3, 8, 15, 16}) CHECK_FALSE(mistral_template(version, true));
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
