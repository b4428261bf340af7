#include "server/chat_format.h"

#include <catch2/catch.hpp>

#include "text/tool_calls/response_template.h"

using namespace millrace;
using namespace millrace::server;

namespace {

constexpr const char* kDescribed =
    R"({"response_template":{"start_anchor":"<a>","fields":{"content":{},"thinking":{"open":"<t>","close":"</t>"},)"
    R"("tool_calls":{"open":"<c>","close":"</c>","content":"json"}}}})";

std::shared_ptr<const text::ChatTemplate> made(std::string_view source, std::string_view config = {}) {
  return text::ChatTemplate::from_source(source, config).value();
}

openai::ChatRequest with_tool(bool is_strict = false) {
  openai::ChatRequest request;
  request.conversation.messages.push_back({.role = "user", .content = "hi"});
  request.conversation.tools.push_back({"f", R"({"type":"object"})", is_strict, "tools[0].function"});
  request.conversation.tools_json = "[{}]";
  return request;
}

}  // namespace

TEST_CASE("a chat template decides the formats unless a flag does") {
  ServerOptions options;
  const auto gemma = made("{{ tools }}<|tool_call>call:<tool_call|><|channel>thought");
  const text::OutputFormat format =
      ChatFormat(options, *gemma).make_output_format(with_tool(), "<|turn>model\n<|channel>thought\n");
  CHECK(format.tools == text::ToolFormat::kGemma4);
  CHECK(format.reasoning == text::ReasoningFormat::kGemma4);
  CHECK(format.begins_in_reasoning);
  options.detect_tool_format = false;
  options.tool_format = text::ToolFormat::kGlm47;
  options.detect_reasoning_format = false;
  const text::OutputFormat fixed = ChatFormat(options, *gemma).make_output_format(with_tool(), "");
  CHECK(fixed.tools == text::ToolFormat::kGlm47);
  CHECK(fixed.parameter_types != nullptr);
  CHECK_FALSE(fixed.reasoning);
}

TEST_CASE("an answer in a form begins no reasoning within") {
  const ServerOptions options;
  const auto thinking = made("{{ tools }}<think></think>");
  openai::ChatRequest request = with_tool();
  CHECK_FALSE(ChatFormat(options, *thinking).make_output_format(request, "").reasoning_is_closed);
  request.response_format =
      openai::ResponseFormat{openai::ResponseFormat::Kind::kJsonObject, {}, "response_format", "json_object"};
  CHECK(ChatFormat(options, *thinking).make_output_format(request, "").reasoning_is_closed);
}

TEST_CASE("a response template describes outputs of unknown format") {
  ServerOptions options;
  const auto described = made("{{ tools }}", kDescribed);
  const ChatFormat chat_format(options, *described);
  CHECK(chat_format.can_call());
  const text::OutputFormat format = chat_format.make_output_format(with_tool(), "x<a><t>");
  CHECK(format.response_template != nullptr);
  CHECK(format.prompt_end == "<t>");
  CHECK(format.has_tools());
  CHECK(chat_format.make_output_constraint(with_tool(), format)->is_unconstrained());
  CHECK(chat_format.make_output_constraint(with_tool(true), format).error().param == "tools");
  openai::ChatRequest custom = with_tool(true);
  custom.conversation.tools[0].is_custom = true;
  custom.conversation.tools[0].input = openai::InputGrammar{.definition = "start: \"a\""};
  CHECK(chat_format.make_output_constraint(custom, format)->is_unconstrained());
  openai::ChatRequest forced = with_tool();
  forced.conversation.tool_choice = openai::ToolChoice::kRequired;
  const auto refused = chat_format.make_output_constraint(forced, format);
  CHECK(refused.error().status == 400);
  CHECK(refused.error().param == "tool_choice");
}

TEST_CASE("calls are forbidden where no tool may be called") {
  ServerOptions options;
  const auto hermes = made("{{ tools }}<tool_call>");
  openai::ChatRequest request = with_tool();
  request.conversation.tools.clear();
  request.conversation.restricts_tools = true;
  const ChatFormat chat_format(options, *hermes);
  const auto constraint = chat_format.make_output_constraint(request, chat_format.make_output_format(request, ""));
  REQUIRE(constraint->calls);
  CHECK(constraint->calls->tools.empty());
  CHECK_FALSE(constraint->calls->must_call);
}

TEST_CASE("a known format goes before a response template") {
  ServerOptions options;
  const auto hermes = made("{{ tools }}<tool_call>", kDescribed);
  CHECK(ChatFormat(options, *hermes).make_output_format(with_tool(), "").tools == text::ToolFormat::kHermes);
  options.uses_response_template = true;
  options.detect_tool_format = false;
  const text::OutputFormat format = ChatFormat(options, *hermes).make_output_format(with_tool(), "");
  CHECK_FALSE(format.tools);
  CHECK(format.response_template != nullptr);
  CHECK_FALSE(ChatFormat(options, *made("{{ tools }}<tool_call>")).can_call());
}
