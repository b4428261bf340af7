#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "text/tool_calls/output_parser.h"
#include "text/tool_calls/parameter_types.h"
#include "text/tool_calls/parsed_output.h"

using namespace millrace;
using namespace millrace::test;
using namespace millrace::text;

TEST_CASE("JSON arguments that are damaged or encoded twice") {
  const auto kimi = [](const std::string& arguments) {
    return summary(
        parse_output(output_format(ToolFormat::kKimiK2),
                     "<|tool_call_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>" +
                         arguments + "<|tool_call_end|><|tool_call_section_end|>Then."));
  };
  CHECK(kimi(R"({"a": 1})") == R"(Then. {f #functions.f:0: {"a": 1}})");
  CHECK(kimi(R"("{\"a\": [\"<b>\"]}")") == R"(Then. {f #functions.f:0: {"a": ["<b>"]}})");
  CHECK(kimi(R"({"a": {"b": [1)") == R"(Then. {f #functions.f:0: {"a": {"b": [1]}}})");
  CHECK(kimi("") == "Then. {f #functions.f:0: {}}");
  CHECK(summary(parse_output(output_format(ToolFormat::kHermes),
                             R"(<tool_call>{"name": "f", "arguments": {"a": 1</tool_call> ok)")) ==
        R"( ok {f: {"a": 1}})");
  // A model may write the notation of its older template.
  CHECK(summary(parse_output(output_format(ToolFormat::kPythonic), R"({"name": "f", "parameters": {"a": 1}})")) ==
        R"( {f: {"a": 1}})");
}

TEST_CASE("values without quotes have the types of their schema") {
  const auto value = [](std::string_view key, std::string_view written) {
    const std::string answer =
        fmt::format("<tool_call>f<arg_key>{}</arg_key><arg_value>{}</arg_value></tool_call>", key, written);
    const OutputPart found = parse_output(output_format(ToolFormat::kGlm47), answer);
    REQUIRE(found.calls.size() == 1);
    const std::string& arguments = found.calls[0].arguments;
    return arguments.substr(arguments.find(": ") + 2, arguments.size() - arguments.find(": ") - 3);
  };
  CHECK(value("room", "12") == "\"12\"");
  CHECK(value("digits", " 12 ") == "12");
  CHECK(value("digits", "many") == "\"many\"");
  CHECK(value("on", "True") == "true");
  CHECK(value("list", "[1, \"a\"]") == "[1,\"a\"]");
  CHECK(value("may", "null") == "null");
  CHECK(value("may", "nullable") == "\"nullable\"");
  CHECK(value("id", "5") == "5");
  CHECK(value("id", "5a") == "\"5a\"");
  CHECK(value("other", "5") == "\"5\"");
  ParameterTypes types;
  types.add("g", R"({"properties":{"a":{"$ref":"#/$defs/n"},"b":{"enum":["x"]}},"additionalProperties":)"
                 R"({"type":"number"},"$defs":{"n":{"type":"integer"}}})");
  CHECK(types.of("g", "a").has(ValueType::kInteger));
  CHECK(types.of("g", "b") == kStringOnly);
  CHECK(types.of("g", "c").has(ValueType::kNumber));
  CHECK(types.of("h", "c") == kStringOnly);
}

TEST_CASE("schemas that refer to each other are read once") {
  std::string refs;
  for (int i = 0; i < 3000; ++i) refs += R"({"$ref":"#"},{"$ref":"#/$defs/all"},)";
  std::string chain = R"("d0":{"type":"integer"})";
  for (int i = 1; i < 40; ++i) chain += fmt::format(R"(,"d{}":{{"allOf":[{{"$ref":"#/$defs/d{}"}}]}})", i, i - 1);
  ParameterTypes types;
  types.add("f", fmt::format(R"({{"anyOf":[{0}{{"properties":{{"far":{{"$ref":"#/$defs/d39"}}}}}}],)"
                             R"("properties":{{"all":{{"$ref":"#/$defs/all"}}}},)"
                             R"("$defs":{{"all":{{"oneOf":[{0}{{"type":"null"}}]}},{1}}}}})",
                             refs, chain));
  CHECK(types.of("f", "far") == ValueTypes{ValueType::kInteger});
  CHECK(types.of("f", "all").has(ValueType::kNull));
  CHECK(types.of("f", "other") == kStringOnly);
}

TEST_CASE("literals of Python and of Gemma become JSON") {
  const auto python = [](const std::string& arguments) {
    return summary(parse_output(output_format(ToolFormat::kPythonic), "[f(" + arguments + ")]"));
  };
  CHECK(python("") == " {f: {}}");
  CHECK(python("a=1, b=-2.5e3, c=True, d=None") == R"( {f: {"a": 1, "b": -2.5e3, "c": true, "d": null}})");
  CHECK(python(R"(a='it\'s', b="x\n\x41é\q")") == R"( {f: {"a": "it's", "b": "x\nAé\\q"}})");
  CHECK(python("a=[1, 'b', [], ()], b={'k': {\"n\": False}}, c={}") ==
        R"( {f: {"a": [1, "b", [], []], "b": {"k": {"n": false}}, "c": {}}})");
  CHECK(python("a=\"emoji \\ud83d\\ude00\"") == R"( {f: {"a": "emoji \ud83d\ude00"}})");
  CHECK(python("a=[1,],") == R"( {f: {"a": [1]}})");
  const auto whole = [](const std::string& answer) {
    return summary(parse_output(output_format(ToolFormat::kPythonic), answer));
  };
  CHECK(whole("<|python_start|>[f(a=1), g()]<|python_end|>") == R"( {f: {"a": 1}} {g: {}})");
  CHECK(whole("[1, 2, 3]") == "[1, 2, 3]");
  CHECK(whole("[a link](http://x)") == "[a link](http://x)");
  CHECK(whole("[f(1)]") == "1)] {f: {}}");
  CHECK(whole("f(a=1)") == "f(a=1)");
  const auto gemma = [](const std::string& arguments) {
    return summary(parse_output(output_format(ToolFormat::kGemma4), "<|tool_call>call:f" + arguments + "<tool_call|>"));
  };
  CHECK(gemma(R"({a:<|"|>x "y" {z}<|"|>,b:[1,<|"|>c<|"|>],d:{e:true,f:null},g:{}})") ==
        R"( {f: {"a": "x \"y\" {z}", "b": [1, "c"], "d": {"e": true, "f": null}, "g": {}}})");
  CHECK(gemma(R"({a:word,b:"json \"quotes\""})") == R"( {f: {"a": "word", "b": "json \"quotes\""}})");
  // What models make of it: no mark before a string, JSON's or Python's quotes, marks for quotation marks, parentheses.
  CHECK(gemma(R"({q:weather in Tokyo<|"|>,n:2})") == R"( {f: {"q": "weather in Tokyo", "n": 2}})");
  CHECK(gemma(R"({a:["x",'y'],b:{"mode": "fast"}})") == R"( {f: {"a": ["x", "y"], "b": {"mode": "fast"}}})");
  CHECK(gemma(R"({c:<|"|>sql(<|"|><|"|><|"|> SELECT <|"|><|"|><|"|>).df<|"|>,d:1})") ==
        R"( {f: {"c": "sql(\"\"\" SELECT \"\"\").df", "d": 1}})");
  CHECK(gemma(R"x((a=<|"|>x<|"|>, b=2))x") == R"( {f: {"a": "x", "b": 2}})");
  CHECK(gemma("{a:}") == "}<tool_call|> {f: {\"a\": null}}");
}

TEST_CASE("harmony has messages with channels and recipients") {
  const auto find = [](const std::string& answer) {
    return summary(parse_output(output_format(ToolFormat::kHarmony, ReasoningFormat::kHarmony), answer));
  };
  CHECK(find("<|channel|>final<|message|>Hello.<|return|>") == "Hello.");
  CHECK(find("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.") ==
        "[Hm.] Yes.");
  CHECK(find("<|channel|>commentary<|message|>I look.<|end|><|start|>assistant to=functions.f<|channel|>commentary "
             "<|constrain|>json<|message|>{\"a\": 1}<|call|>") == R"(I look. {f: {"a": 1}})");
  CHECK(find("<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>analysis<|message|>Two.") ==
        "[One.\nTwo.] ");
  CHECK(find("<|channel|>commentary to=python code<|message|>print(1)<|call|>") == "print(1)");
  CHECK(find("<|channel|>commentary to=f<|message|><|call|>") == " {f: {}}");
  CHECK(find("Just text, 1 < 2.") == "Just text, 1 < 2.");
  CHECK(find("<|channel|>analysis<|message|>cut <|en") == "[cut ] ");
  CHECK(find("<|channel|>comm").empty());
  // Headers that are not as they should be.
  CHECK(find("<|channel|>commentary?<|end|><|start|>assistant<|channel|>analysis<|message|>Hm.") == "[Hm.] ");
  CHECK(find("<|channel|>commentary to=functions.web-browsing<|channel|>commentary json<|message|>{}") ==
        " {web-browsing: {}}");
  CHECK(find("<|channel|>final Hello there.") == "Hello there.");
  CHECK(find("<|channel|>" + std::string(2000, 'x')).size() > 2000);
  OutputFormat together = output_format(ToolFormat::kHarmony);
  CHECK(summary(parse_output(together, "<|channel|>analysis<|message|>Hm.<|end|>")) == "Hm.");
}

TEST_CASE("content in tags of its own") {
  const OutputFormat format = output_format(ToolFormat::kCommand, ReasoningFormat::kCommand);
  CHECK(summary(
            parse_output(format, "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>Yes. <|x<|END_RESPONSE|>")) ==
        "[Hm.] Yes. <|x");
  CHECK(summary(parse_output(format, "<|START_TEXT|>Yes.<|END_TEXT|>")) == "Yes.");
  const OutputFormat granite = output_format(ToolFormat::kGranite, ReasoningFormat::kGranite);
  CHECK(summary(parse_output(granite, "Here is my thought process: Hm.\nHere is my response: Yes.")) == "[Hm.] Yes.");
  CHECK(summary(parse_output(granite, "Here is my cat.")) == "Here is my cat.");
}
