#include "text/tool_calls/output_parser.h"

#include <array>
#include <catch2/catch.hpp>
#include <span>
#include <vector>

#include "text/chat_template/chat_template.h"
#include "text/tool_calls/parsed_output.h"

using namespace millrace;
using namespace millrace::test;
using namespace millrace::text;

namespace {

std::string parse(const OutputFormat& format, std::string_view answer) {
  return summary(parse_output(format, answer));
}

OutputFormat tools(ToolFormat format) {
  OutputFormat answer;
  answer.tools = format;
  return answer;
}

struct Case {
  const char* answer;
  const char* expected;
};

void check(const OutputFormat& format, std::span<const Case> cases) {
  for (const Case& each : cases) {
    CAPTURE(each.answer);
    CHECK(parse(format, each.answer) == each.expected);
  }
}

}  // namespace

TEST_CASE("Hermes calls and what only resembles them") {
  const std::array cases = {
      Case{"Hello.", "Hello."},
      Case{"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>", " {f: {\"a\": 1}}"},
      Case{"I look.\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n", "I look. {f: {}}"},
      Case{"<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", "
           "\"arguments\": "
           "{\"s\": \"}</tool_call>\"}}\n</tool_call>",
           " {f: {}} {g: {\"s\": \"}</tool_call>\"}}"},
      Case{"<tool_call>{\"arguments\": {\"a\": [1, {}]}, \"name\": \"f\"}</tool_call>", " {f: {\"a\": [1, {}]}}"},
      Case{"<tool_call>{\"name\": \"f\"}</tool_call>", " {f: {}}"},
      Case{"<tool_call>{\"name\": \"f\", \"arguments\": null}</tool_call>", " {f: {}}"},
      Case{"<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>", " {f: {\"a\": 1}}"},
      Case{"<tool_call>{\"id\": 7, \"name\": \"a\\u00e4\", \"x\": true, \"arguments\": {\"q\": "
           "\"\\\\\\\"}\"}}</tool_call>",
           " {aä: {\"q\": \"\\\\\\\"}\"}}"},
      // The output lacks its end, as after max_tokens.
      Case{"<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"lon", " {f: {\"a\": \"lon}"},
      Case{"<tool_call>{\"name\": \"f\"", " {f: }"},
      Case{"<tool_call>{\"name\": \"f\", \"arguments\": {}}", " {f: {}}"},
      // The closing tag forgotten.
      Case{"<tool_call>{\"name\": \"f\", \"arguments\": {}}\n<tool_call>{\"name\": \"g\", \"arguments\": "
           "{}}</tool_call>",
           " {f: {}} {g: {}}"},
      // No calls: nothing is lost.
      Case{"a <tool_cal", "a <tool_cal"},
      Case{"a < b <tool> c", "a < b <tool> c"},
      Case{"<tool_call>f(1)</tool_call> ok", "<tool_call>f(1)</tool_call> ok"},
      Case{"<tool_call>{\"function\": \"f\"}</tool_call>", "<tool_call>{\"function\": \"f\"}</tool_call>"},
      Case{"<tool_call>{\"na", "<tool_call>{\"na"},
      Case{"<tool_call>{\"name\": \"\", \"arguments\": {}}", "<tool_call>{\"name\": \"\", \"arguments\": {}}"},
      Case{"spaces  \n", "spaces  \n"},
  };
  check(tools(ToolFormat::kHermes), cases);
}

TEST_CASE("Llama calls are the whole output") {
  const std::array cases = {
      Case{"{\"name\": \"f\", \"parameters\": {\"a\": \"b\"}}", " {f: {\"a\": \"b\"}}"},
      Case{"<|python_tag|>{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}", " {f: {}}"},
      Case{"\n {\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {\"x\": 1}}",
           " {f: {}} {g: {\"x\": 1}}"},
      Case{"<|python_tag|>{\"name\": \"f\", \"parameters\": {}};<|python_tag|>{\"name\": \"g\", \"parameters\": {}}",
           " {f: {}} {g: {}}"},
      Case{"Look: {\"name\": \"f\", \"parameters\": {}}", "Look: {\"name\": \"f\", \"parameters\": {}}"},
      Case{"{\"title\": \"no call\"} and more", "{\"title\": \"no call\"} and more"},
      Case{"{\"name\": 3}", "{\"name\": 3}"},
      Case{"  {", "  {"},
      Case{"<|python_", "<|python_"},
      Case{"{\"name\": \"f\", \"parameters\": {}} done", " done {f: {}}"},
  };
  check(tools(ToolFormat::kLlama3), cases);
}

TEST_CASE("Mistral calls in either syntax") {
  const std::array cases = {
      Case{"[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}}]", " {f: {\"a\": 1}}"},
      Case{"[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}, \"id\": \"x\"}, {\"name\": \"g\", \"arguments\": {}}]",
           " {f: {}} {g: {}}"},
      Case{"Well.[TOOL_CALLS]f[ARGS]{\"a\": {\"b\": \"}\"}}[TOOL_CALLS]g[CALL_ID]123[ARGS]{}",
           "Well. {f: {\"a\": {\"b\": \"}\"}}} {g: {}}"},
      Case{"[TOOL_CALLS]f{\"a\": 1}", " {f: {\"a\": 1}}"},
      Case{"a [TOOL] b", "a [TOOL] b"},
      Case{"[TOOL_CALLS] [1, 2]", "[TOOL_CALLS] [1, 2]"},
      Case{"[TOOL_CALLS]", "[TOOL_CALLS]"},
      Case{"[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a", " {f: {\"a}"},
  };
  check(tools(ToolFormat::kMistral), cases);
}

TEST_CASE("DeepSeek calls in either syntax") {
  const std::array cases = {
      Case{"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": "
           "1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<"
           "｜tool▁call▁end｜>"
           "<｜tool▁calls▁end｜>",
           " {f: {\"a\": 1}} {g: {}}"},
      Case{"Hm.\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"s\": "
           "\"｜\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
           "Hm. {f: {\"s\": \"｜\"}}"},
      Case{"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜><｜tool▁call▁end｜><｜tool▁calls▁end｜>",
           " {f: {}}"},
      Case{"<｜tool▁calls▁begin｜>nothing", "<｜tool▁calls▁begin｜>nothing"},
      Case{"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f"},
  };
  check(tools(ToolFormat::kDeepSeekV3), cases);
}

TEST_CASE("Calls that are written parameter by parameter") {
  OutputFormat format = tools(ToolFormat::kQwen3Coder);
  auto types = std::make_shared<ParameterTypes>();
  types->add(
      "f", R"({"properties":{"n":{"type":"integer"},"ok":{"type":"boolean"},"of":{"type":"array"},)"
           R"("may":{"anyOf":[{"type":"string"},{"type":"null"}]},"word":{"enum":["a","1"]},"s":{"type":"string"}}})");
  format.parameter_types = types;
  const auto call = [](const std::string& parameters) {
    return "<tool_call>\n<function=f>\n" + parameters + "</function>\n</tool_call>";
  };
  const auto given = [](const std::string& key, const std::string& value) {
    return "<parameter=" + key + ">\n" + value + "\n</parameter>\n";
  };
  CHECK(parse(format, "I look.\n" + call(given("s", "two\nlines") + given("n", "3"))) ==
        "I look. {f: {\"s\": \"two\\nlines\", \"n\": 3}}");
  CHECK(parse(format, call(given("n", "18446744073709551616") + given("n", "1.50") + given("n", "1e400"))) ==
        R"( {f: {"n": 18446744073709551616, "n": 1.50, "n": 1e400}})");
  CHECK(parse(format, call("") + "\n" + call(given("ok", "True"))) == " {f: {}} {f: {\"ok\": true}}");
  CHECK(parse(format, call(given("of", "[1, \"x\"]") + given("of", "[1,"))) == R"( {f: {"of": [1,"x"], "of": "[1,"}})");
  CHECK(parse(format, call(given("may", "null") + given("s", "null"))) == R"( {f: {"may": null, "s": "null"}})");
  CHECK(parse(format, call(given("word", "1") + given("unknown", "2"))) == R"( {f: {"word": "1", "unknown": "2"}})");
  CHECK(parse(format, call(given("s", "\n <parameter=x> </function> \"q\"\n"))) ==
        R"( {f: {"s": "\n <parameter=x> </function> \"q\"\n"}})");
  CHECK(parse(format, "<tool_call><function=f><parameter=s>bare</parameter></function></tool_call>") ==
        R"( {f: {"s": "bare"}})");
  CHECK(parse(format, "<tool_call>\n<function=f>\nwhat</function>") == "what</function> {f: {}}");
  CHECK(parse(format, "<tool_call>\n<function=f>\n<parameter>x") == "<parameter>x {f: {}}");
  CHECK(parse(format, "<tool_call>\n<function=f>\n<parameter=x\ny>") == "<parameter=x\ny> {f: {}}");
  CHECK(parse(format, "<tool_call>\n{\"name\": \"f\"}") == "<tool_call>\n{\"name\": \"f\"}");
  // A string is emitted as it comes, other values at their end.
  CHECK(parse(format, "<tool_call>\n<function=f>\n<parameter=s>\ncut sho") == " {f: {\"s\": \"cut sho}");
  CHECK(parse(format, "<tool_call>\n<function=f>\n<parameter=may>\nnull and") == " {f: {\"may\": \"null and}");
  CHECK(parse(format, "<tool_call>\n<function=f>\n<parameter=n>\n1") == " {f: {\"n\": }");
  format.prefix = tool_call_prefix(ToolFormat::kQwen3Coder, "f");
  CHECK(parse(format, given("n", "1") + "</function>\n</tool_call>") == " {f: {\"n\": 1}}");
}

TEST_CASE("Reasoning is told from the answer") {
  OutputFormat format;
  format.reasoning = ReasoningFormat::kThink;
  const std::array cases = {
      Case{"<think>\nHm, 1 < 2.\n</think>\n\nYes.", "[Hm, 1 < 2.] Yes."},
      Case{"\n<think></think>Yes.", "Yes."},
      Case{"Yes. <think>no</think>", "Yes. <think>no</think>"},
      Case{"<thin", "<thin"},
      Case{"<think>cut o", "[cut o] "},
      Case{"<think>a </thi b", "[a </thi b] "},
      Case{"", ""},
      Case{"Hm, 1 < 2.\n</think>\n\nYes.", "[Hm, 1 < 2.] Yes."},
      Case{"</think>Yes.", "Yes."},
      Case{"Hm. </thi </think> Yes. </think>", "[Hm. </thi] Yes. </think>"},
      Case{"<think>a</think>b</think>c", "[a] b</think>c"},
      Case{"Hm.</think>", "[Hm.] "},
  };
  check(format, cases);
  format.reasoning_is_closed = true;
  const std::array reasoned = {
      Case{"The tag </think> ends it.", "The tag </think> ends it."},
      Case{"<think>a</think>b", "[a] b"},
  };
  check(format, reasoned);
  format.reasoning_is_closed = false;
  format.tools = ToolFormat::kHermes;
  const std::array called = {
      Case{"So<tool_call>? No.</think>\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
           "[So<tool_call>? No.]  {f: {}}"},
      Case{"<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call></think>", "</think> {f: {}}"},
  };
  check(format, called);
  format.tools = {};
  format.begins_in_reasoning = true;
  const std::array open = {
      Case{"So it is.\n</think>\nYes.", "[So it is.] Yes."},
      Case{"</think>\n\nYes.", "Yes."},
      Case{"never ends \n", "[never ends] "},
  };
  check(format, open);
  format.tools = ToolFormat::kHermes;
  CHECK(parse(format, "<tool_call>?</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>") ==
        "[<tool_call>?]  {f: {}}");
}

TEST_CASE("Reasoning opened by a prompt or asked for by a template") {
  using enum ReasoningFormat;
  CHECK(prompt_opens_reasoning("<|Assistant|><think>\n", kThink));
  CHECK_FALSE(prompt_opens_reasoning("<think>\n\n</think>\n\n", kThink));
  CHECK_FALSE(prompt_opens_reasoning("say <think> please<|Assistant|>", kThink));
  CHECK(prompt_opens_reasoning("<|turn>model\n<|channel>thought\n", kGemma4));
  CHECK(prompt_closes_reasoning("<|START_THINKING|><|END_THINKING|>", kCommand));
  CHECK(is_within_reasoning("<think>I", kThink));
  CHECK_FALSE(is_within_reasoning("<think>I</think>", kThink));
  CHECK_FALSE(is_within_reasoning("I", kThink));
  const auto made = [](std::string_view source) { return ChatTemplate::from_source(source).value(); };
  const auto hermes = made("{% if tools %}<tool_call>{% endif %}");
  CHECK(hermes->tool_format() == ToolFormat::kHermes);
  CHECK(hermes->supports_tools());
  CHECK_FALSE(hermes->reasoning_format());
  CHECK_FALSE(made("{% if tools %}<tool_call><function=x>{% endif %}")->tool_format());
  const auto coder = made("{% if tools %}<tool_call><function=x><parameter=y>{% endif %}");
  CHECK(coder->tool_format() == ToolFormat::kQwen3Coder);
  CHECK_FALSE(made("{{ message.tool_calls }}<tool_call></think>")->supports_tools());
  CHECK(made("</think>")->reasoning_format() == kThink);
}

TEST_CASE("Space that is held back for a call has a bound") {
  OutputParser parser(tools(ToolFormat::kHermes));
  OutputPart part;
  parser.push("a" + std::string(10'000, ' '), part);
  CHECK(part.content.size() > 9'000);
}
