#include "text/tool_calls/tool_formats.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <array>
#include <catch2/catch.hpp>
#include <filesystem>
#include <map>
#include <random>
#include <sstream>

#include "base/json.h"
#include "support/effort.h"
#include "support/paths.h"
#include "support/skip.h"
#include "support/test_seed.h"
#include "text/json_support.h"
#include "text/tool_calls/output_parser.h"
#include "text/tool_calls/parsed_output.h"

using namespace millrace;
using namespace millrace::test;
using namespace millrace::text;

namespace {

std::vector<ToolFormat> all_formats() {
  std::vector<ToolFormat> formats;
  for (size_t i = 0; i < kToolFormatCount; ++i) formats.push_back(static_cast<ToolFormat>(i));
  return formats;
}

/// Returns JSON without white space.
std::string normalised(std::string_view json) {
  simdjson::dom::parser parser;
  simdjson::dom::element element;
  if (parser.parse(json.data(), json.size()).get(element) != simdjson::SUCCESS) return "no JSON: " + std::string(json);
  return simdjson::minify(element);
}

ReasoningFormat reasoning_of(ToolFormat format) {
  switch (format) {
    case ToolFormat::kHarmony: return ReasoningFormat::kHarmony;
    case ToolFormat::kCommand: return ReasoningFormat::kCommand;
    case ToolFormat::kGemma4: return ReasoningFormat::kGemma4;
    case ToolFormat::kHunyuan3: return ReasoningFormat::kHunyuan3;
    case ToolFormat::kMistralV13: return ReasoningFormat::kMistral;
    default: return ReasoningFormat::kThink;
  }
}

std::string json_text(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

/// Returns a string as a dialect writes it.
std::string literal_of(const LiteralDialect& dialect, const std::string& text) {
  return dialect.quote.empty() ? json_text(text) : std::string(dialect.quote) + text + std::string(dialect.quote);
}

/// Returns the arguments room, digits and on in the notation of a syntax.
std::string written_arguments(const ToolCallSyntax& syntax, const std::string& room, int digits) {
  switch (syntax.notation) {
    case ArgumentNotation::kLiterals: {
      const LiteralDialect& dialect = *syntax.dialect;
      return fmt::format("{}room{}{},digits{}{}{}", dialect.open, dialect.key_end, literal_of(dialect, room),
                         dialect.key_end, digits, dialect.close);
    }
    case ArgumentNotation::kParameters: {
      const ParameterTags& tags = *syntax.tags;
      const auto one = [&tags](std::string_view key, const std::string& value) {
        return fmt::format("{}{}{}{}{}{}", tags.open, key, tags.key_end, tags.value_open, value, tags.value_end);
      };
      // The tag says that both are strings, so only the other formats have numbers.
      return one("room", room) + (tags.has_string_attribute ? "" : one("digits", std::to_string(digits)));
    }
    default: return fmt::format("{{\"room\": {}, \"digits\": {}}}", json_text(room), digits);
  }
}

std::string written_call(const ToolCallSyntax& syntax, const std::string& arguments) {
  const std::string id =
      syntax.id == CallIdSyntax::kNone
          ? ""
          : fmt::format("{}{}", syntax.id_open, syntax.id == CallIdSyntax::kNumber ? "7" : "a1B2c3D4e");
  return fmt::format("{}{}{}room_temp{}{}{}{}{}", syntax.call_open, syntax.id_is_first ? id : "", syntax.before_name,
                     syntax.id_is_first ? "" : id, syntax.before_arguments, arguments, syntax.after_arguments,
                     syntax.call_close);
}

std::string written_section(const ToolCallSyntax& syntax, const std::vector<std::string>& calls) {
  std::string text = fmt::format("{}{}", syntax.section_open, syntax.list_open);
  for (size_t i = 0; i < calls.size(); ++i) text += (i == 0 ? "" : std::string(syntax.separator)) + calls[i];
  return text + std::string(syntax.list_close) + std::string(syntax.section_close);
}

/// Returns the markers of all formats, and other parts of calls.
std::vector<std::string> marker_bits() {
  std::vector<std::string> bits = {"f",
                                   "{",
                                   "}",
                                   "[",
                                   "]",
                                   "(",
                                   ")",
                                   "\"",
                                   "'",
                                   "\\",
                                   ",",
                                   ";",
                                   ":",
                                   "=",
                                   " ",
                                   "\n",
                                   "12",
                                   "null",
                                   "True",
                                   "ä",
                                   "<",
                                   ">",
                                   "|",
                                   "a=",
                                   "a>",
                                   "f(",
                                   "call:",
                                   "{\"name\": \"f\"",
                                   ", \"arguments\": ",
                                   "<think>",
                                   "</think>"};
  for (const ToolFormat format : all_formats()) {
    for (const ToolCallSyntax& syntax : row_of(format).read) {
      for (const std::string_view part :
           {syntax.section_open, syntax.call_open, syntax.before_name, syntax.before_arguments, syntax.after_arguments,
            syntax.call_close, syntax.section_close, syntax.id_open}) {
        if (!part.empty()) bits.emplace_back(part);
      }
      if (syntax.dialect != nullptr) bits.emplace_back(syntax.dialect->quote);
      if (syntax.tags == nullptr) continue;
      for (const std::string_view part : {syntax.tags->open, syntax.tags->key_end, syntax.tags->value_end}) {
        bits.emplace_back(part);
      }
    }
  }
  return bits;
}

bool is_harmony(ToolFormat format) {
  return format == ToolFormat::kHarmony;
}

}  // namespace

TEST_CASE("names of tool formats and their aliases") {
  for (const ToolFormat format : all_formats()) CHECK(parse_tool_format(to_string(format)) == format);
  for (const std::string& alias : tool_format_aliases()) CHECK(parse_tool_format(alias).has_value());
  CHECK(parse_tool_format("qwen3_xml") == ToolFormat::kQwen3Coder);
  CHECK(parse_tool_format("openai") == ToolFormat::kHarmony);
  CHECK_FALSE(parse_tool_format("auto"));
  CHECK(parse_reasoning_format("deepseek_r1") == ReasoningFormat::kThink);
  CHECK_FALSE(parse_reasoning_format("none"));
}

TEST_CASE("calls as models of each family write them") {
  const auto file = shared_data_dir() / "agents/tool_calls.jsonl";
  if (!std::filesystem::exists(file)) SKIP_TEST("no recorded calls");
  const std::map<std::string, ToolFormat, std::less<>> formats = {{"hermes / qwen2.5 / qwen3", ToolFormat::kHermes},
                                                                  {"granite 3.0", ToolFormat::kGranite},
                                                                  {"granite 3.1", ToolFormat::kGranite},
                                                                  {"mistral v3/v7", ToolFormat::kMistral},
                                                                  {"mistral v11", ToolFormat::kMistralV11},
                                                                  {"mistral v13+", ToolFormat::kMistralV13},
                                                                  {"command-r7b / command-a", ToolFormat::kCommand},
                                                                  {"gpt-oss harmony", ToolFormat::kHarmony}};
  std::istringstream lines(read_file(file));
  size_t count = 0;
  for (std::string line; std::getline(lines, line);) {
    simdjson::dom::parser parser;
    const simdjson::dom::element entry = parser.parse(line);
    const std::string family = member_text(entry, "family");
    const auto known = formats.find(family);
    const auto format = known != formats.end() ? known->second : parse_tool_format(member_text(entry, "vllm_parser"));
    INFO(family);
    REQUIRE(format.has_value());
    const simdjson::dom::element expected = entry["expect"];
    const OutputPart found = parse_output(output_format(*format, reasoning_of(*format)), member_text(entry, "text"));
    CHECK(found.content == member_text(expected, "content"));
    CHECK(found.reasoning == member_text(expected, "reasoning"));
    const simdjson::dom::array calls = expected["calls"];
    REQUIRE(found.calls.size() == calls.size());
    for (size_t i = 0; i < found.calls.size(); ++i) {
      CHECK(found.calls[i].name == member_text(calls.at(i), "name"));
      CHECK(normalised(found.calls[i].arguments) == simdjson::minify(simdjson::dom::element(calls.at(i)["arguments"])));
    }
    ++count;
  }
  CHECK(count >= 20);
}

TEST_CASE("every syntax is read as it is written") {
  const std::array<std::string, 7> kRooms = {"attic",     "a \"b\" \\ c\nd", "null",          "7",
                                             "</tool> <", "x, y=[1]; {z}",   "Übergröße｜ 日"};
  for (const ToolFormat format : all_formats()) {
    for (const ToolCallSyntax& syntax : row_of(format).written) {
      for (const std::string& room : kRooms) {
        const std::string arguments = written_arguments(syntax, room, 12);
        std::vector<std::string> calls(is_harmony(format) ? 1 : 3, written_call(syntax, arguments));
        const std::string answer = written_section(syntax, calls);
        INFO(to_string(format) << ": " << answer);
        const OutputPart found = parse_pieces(output_format(format), {answer});
        CHECK(summary(parse_pieces(output_format(format), pieces_of(answer, 1))) == summary(found));
        CHECK(found.content.empty());
        REQUIRE(found.calls.size() == calls.size());
        for (const ToolCallPart& call : found.calls) {
          CHECK(call.name == "room_temp");
          const std::string digits = arguments.find("12") == std::string::npos ? "" : ",\"digits\":12";
          CHECK(normalised(call.arguments) == fmt::format("{{\"room\":{}{}}}", json_text(room), digits));
        }
      }
    }
  }
}

TEST_CASE("text around calls is content") {
  for (const ToolFormat format : all_formats()) {
    const ToolCallSyntax& syntax = row_of(format).written.front();
    if (syntax.is_whole_output || is_harmony(format)) continue;
    const std::string section = written_section(syntax, {written_call(syntax, written_arguments(syntax, "attic", 1))});
    INFO(to_string(format));
    const OutputPart found = parse_output(output_format(format), "First.\n" + section + "\nThen " + section + "\n");
    CHECK(found.content == "First.\nThen");
    CHECK(found.calls.size() == 2);
  }
}

TEST_CASE("an output may be cut anywhere in a call") {
  for (const ToolFormat format : all_formats()) {
    const ToolCallSyntax& syntax = row_of(format).written.front();
    const std::string call = written_call(syntax, written_arguments(syntax, "attic", 1));
    const std::string answer = written_section(syntax, {call});
    const OutputPart whole = parse_pieces(output_format(format), {answer});
    for (size_t size = 0; size < answer.size(); ++size) {
      const std::string_view cut = std::string_view(answer).substr(0, size);
      INFO(to_string(format) << ": " << cut);
      const OutputPart found = parse_pieces(output_format(format), {cut});
      if (found.calls.empty()) {
        // A header of harmony is markup.
        if (!is_harmony(format)) CHECK(found.content == cut);
        continue;
      }
      CHECK(found.content.empty());
      CHECK(found.calls[0].name == "room_temp");
      // Nothing says that a call of harmony is cut, since a stop token ends it.
      const bool is_empty = is_harmony(format) && found.calls[0].arguments == "{}";
      CHECK((is_empty || whole.calls[0].arguments.starts_with(found.calls[0].arguments)));
    }
  }
}

TEST_CASE("a damaged call is content") {
  for (const ToolFormat format : all_formats()) {
    if (is_harmony(format)) continue;
    const ToolCallSyntax& syntax = row_of(format).written.front();
    const std::string opening = fmt::format("{}{}{}", syntax.section_open, syntax.list_open, syntax.call_open);
    const std::string answer = opening + "\n!\"\n? no call" + std::string(syntax.call_close);
    INFO(to_string(format) << ": " << answer);
    const OutputPart found = parse_output(output_format(format), answer);
    CHECK(found.calls.empty());
    CHECK(found.content == answer);
  }
}

TEST_CASE("calls within reasoning are reasoning") {
  for (const ToolFormat format : all_formats()) {
    if (is_harmony(format) || row_of(format).ends_reasoning) continue;
    const ToolCallSyntax& syntax = row_of(format).written.front();
    const ReasoningRow& reasoning = row_of(reasoning_of(format));
    const std::string section = written_section(syntax, {written_call(syntax, written_arguments(syntax, "attic", 1))});
    const std::string answer = fmt::format("{}I try {}{}\n{}", reasoning.start, section, reasoning.end, section);
    INFO(to_string(format) << ": " << answer);
    const OutputPart found = parse_output(output_format(format, reasoning_of(format)), answer);
    CHECK(found.reasoning == "I try " + std::string(without_space(section)));
    CHECK(found.calls.size() == 1);
  }
  const OutputFormat kimi = output_format(ToolFormat::kKimiK2, ReasoningFormat::kThink);
  const ToolCallSyntax& syntax = row_of(ToolFormat::kKimiK2).written.front();
  const OutputPart found = parse_output(kimi, "<think>Now " + written_section(syntax, {written_call(syntax, "{}")}));
  CHECK(found.reasoning == "Now");
  CHECK(found.calls.size() == 1);
}

TEST_CASE("calls that end an output count within reasoning") {
  for (const ToolFormat format : all_formats()) {
    const bool is_whole_output = row_of(format).written.front().is_whole_output;
    if (is_harmony(format) || row_of(format).ends_reasoning || is_whole_output) continue;
    const ToolCallSyntax& syntax = row_of(format).written.front();
    const ReasoningRow& reasoning = row_of(reasoning_of(format));
    const std::string call = written_call(syntax, written_arguments(syntax, "attic", 1));
    const std::string calls = written_section(syntax, {call, call});
    OutputFormat output = output_format(format, reasoning_of(format));
    const auto parse = [&](std::string_view after) {
      return parse_output(output, fmt::format("{}I try\n{}{}", reasoning.start, calls, after));
    };
    for (const std::string& after : {std::string(), std::string("\n"), std::string(reasoning.end) + "\n\n"}) {
      INFO(to_string(format) << ": " << calls << after);
      const OutputPart found = parse(after);
      CHECK(found.reasoning == "I try");
      CHECK(found.content.empty());
      REQUIRE(found.calls.size() == 2);
      CHECK(found.calls[0].name == "room_temp");
      CHECK(found.calls[1].arguments == found.calls[0].arguments);
      CHECK(found.calls[1].content_before == 0);
    }
    // Anything else after the calls says that the model thinks on.
    for (const std::string& after : {std::string(" or"), std::string(reasoning.end) + " No."}) {
      INFO(to_string(format) << ": " << calls << after);
      CHECK(parse(after).calls.empty());
    }
    output.has_constrained_calls = true;
    CHECK(parse("").calls.empty());
  }
}

TEST_CASE("texts that only resemble calls stay reasoning") {
  const OutputFormat hermes = output_format(ToolFormat::kHermes, ReasoningFormat::kThink);
  const std::string call = R"(<tool_call>{"name": "f", "arguments": {"room": "a"}}</tool_call>)";
  const auto parse = [&](const std::string& answer) { return summary(parse_output(hermes, "<think>" + answer)); };
  CHECK(parse("The tag <tool_call> opens calls: " + call) ==
        R"([The tag <tool_call> opens calls:]  {f: {"room": "a"}})");
  CHECK(parse("So <tool_call>{\"name\" " + call + call) ==
        R"([So <tool_call>{"name"]  {f: {"room": "a"}} {f: {"room": "a"}})");
  for (const std::string text :
       {"a <tool_call", "<tool_call>", "<tool_call>{\"name\": \"f\", \"arguments\": {\"room\": \"a",
        "<tool_call>{\"name\": \"f\"}</tool_call> </thin", "<tool_call>x</tool_call>"}) {
    CHECK(parse(text) == "[" + text + "] ");
    CHECK(parse(text + "</think>b") == "[" + text + "] b");
  }
  CHECK(parse(call + "</think>" + call) == "[" + call + R"(]  {f: {"room": "a"}})");
}

TEST_CASE("ids that models write") {
  const auto id_of = [](ToolFormat format, const std::string& answer) {
    const OutputPart found = parse_output(output_format(format), answer);
    return found.calls.empty() ? "no call" : found.calls[0].id;
  };
  CHECK(id_of(ToolFormat::kKimiK2,
              "<|tool_calls_section_begin|><|tool_call_begin|>functions.room_temp:12"
              "<|tool_call_argument_begin|>{}<|tool_call_end|>") == "functions.room_temp:12");
  CHECK(id_of(ToolFormat::kMistral, "[TOOL_CALLS]f[CALL_ID]a1b2c3d4e[ARGS]{}") == "a1b2c3d4e");
  CHECK(id_of(ToolFormat::kMistral, "[TOOL_CALLS]f[CALL_ID]short[ARGS]{}").empty());
  CHECK(id_of(ToolFormat::kMistral, "[TOOL_CALLS]f[ARGS]{}").empty());
}

TEST_CASE("markers that a model leaves out") {
  const auto find = [](ToolFormat format, const std::string& answer) {
    return summary(parse_output(output_format(format), answer));
  };
  CHECK(find(ToolFormat::kQwen3Coder, "Hm.\n<function=f>\n<parameter=room>\na\n</parameter>\n</function>") ==
        R"(Hm. {f: {"room": "a"}})");
  CHECK(find(ToolFormat::kQwen3Coder, "<tool_call>\n<function=f>\n<parameter=digits>\n1\n</parameter>\n</tool_call>") ==
        R"( {f: {"digits": 1}})");
  CHECK(find(ToolFormat::kGlm47, "<tool_call>f</tool_call>") == " {f: {}}");
  CHECK(find(ToolFormat::kGlm45, "<tool_call>f\n<arg_key>digits</arg_key>\n<arg_value>3.0</arg_value>") ==
        R"( {f: {"digits": 3})");
  CHECK(find(ToolFormat::kHunyuan3,
             "<tool_calls:opensource><tool_call:opensource>f</tool_call:opensource>"
             "<tool_call:opensource>f<arg_key:opensource>room</arg_key:opensource>"
             "<arg_value:opensource>a</arg_value:opensource></tool_call:opensource>"
             "</tool_calls:opensource>") == R"( {f: {}} {f: {"room": "a"}})");
  CHECK(find(ToolFormat::kHunyuan3Preview, "<tool_call>f<tool_sep>\n</tool_call>") == " {f: {}}");
  CHECK(find(ToolFormat::kDeepSeekV31, "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>") == " {f: {}}");
  CHECK(find(ToolFormat::kMiniMaxM2, "<invoke name=\"f\"><parameter name=\"room\">a\n</parameter></invoke> ok") ==
        " ok {f: {\"room\": \"a\\n\"}}");
  CHECK(find(ToolFormat::kDeepSeekV32,
             "<｜DSML｜tool_calls><｜DSML｜invoke name=\"f\"><｜DSML｜parameter "
             "name=\"digits\">1</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜tool_calls>") ==
        R"( {f: {"digits": 1}})");
  CHECK(find(ToolFormat::kGlm47, "<tool_call>f<arg_key>room</arg_key>how many</arg_value></tool_call>") ==
        R"( {f: {"room": "how many"}})");
  CHECK(find(ToolFormat::kDeepSeekV4,
             "<｜DSML｜tool_calls><｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"room\" string=\"true\">a < "
             "b<｜DSML｜parameter name=\"digits\" string=\"false\">2</｜DSML｜invoke></｜DSML｜tool_calls>") ==
        R"( {f: {"room": "a < b", "digits": 2}})");
  CHECK(find(ToolFormat::kDeepSeekV41,
             "Let me see.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"room\" "
             "string=\"true\">Cairns, \"north\"</｜DSML｜ parameter>\n<｜DSML｜ parameter name=\"digits\" "
             "string=\"false\">1</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>") ==
        R"(Let me see. {f: {"room": "Cairns, \"north\"", "digits": 1}})");
  CHECK(find(ToolFormat::kLfm2, "I look.<|tool_call_start|>[f(room='attic', digits=1), f()]<|tool_call_end|>Done.") ==
        R"(I look.Done. {f: {"room": "attic", "digits": 1}} {f: {}})");
  CHECK(find(ToolFormat::kNemotron, "<TOOLCALL>[{\"name\": \"f\", \"arguments\": {}}]</TOOLCALL>") == " {f: {}}");
  CHECK(find(ToolFormat::kGranite, "<tool_call>[{\"name\": \"f\", \"arguments\": {}}]") == " {f: {}}");
  CHECK(find(ToolFormat::kPhi4Mini, "Use functools.wraps here.") == "Use functools.wraps here.");
  CHECK(find(ToolFormat::kPhi4Mini, "<|tool_call|>[{\"name\": \"f\", \"arguments\": {}}]<|/tool_call|>") == " {f: {}}");
}

TEST_CASE("the beginning of a forced call parses as sampled text") {
  for (const ToolFormat format : all_formats()) {
    const ToolCallSyntax& syntax = row_of(format).written.front();
    const std::string answer = written_section(syntax, {written_call(syntax, written_arguments(syntax, "attic", 1))});
    for (const char* name : {"", "room_temp"}) {
      OutputFormat output = output_format(format);
      output.prefix = tool_call_prefix(format, name);
      INFO(to_string(format) << ": " << output.prefix);
      REQUIRE(answer.starts_with(output.prefix));
      const OutputPart found = parse_output(output, answer.substr(output.prefix.size()));
      CHECK(found.content.empty());
      REQUIRE(found.calls.size() == 1);
      CHECK(found.calls[0].name == "room_temp");
    }
  }
}

TEST_CASE("pieces of any output give what the whole gives") {
  std::mt19937_64 random(test_seed());
  INFO("seed " << test_seed());
  const std::vector<std::string> bits = marker_bits();
  size_t with_calls = 0;
  for (const ToolFormat tools : all_formats()) {
    for (size_t round = 0; round < repetitions(200); ++round) {
      OutputFormat format = output_format(tools);
      if (random() % 2 == 0) format.reasoning = static_cast<ReasoningFormat>(random() % 7);
      format.begins_in_reasoning = random() % 4 == 0;
      format.reasoning_is_closed = random() % 4 == 0;
      // Half of the outputs damage a call, the others are soup.
      const ToolCallSyntax& syntax = row_of(tools).written.front();
      std::string answer;
      if (random() % 2 == 0) {
        answer = written_section(syntax, {written_call(syntax, written_arguments(syntax, "attic", 1))});
        answer.insert(random() % answer.size(), bits[random() % bits.size()]);
      } else {
        for (size_t count = random() % 16; count > 0; --count) answer += bits[random() % bits.size()];
      }
      INFO(to_string(tools) << ": " << answer);
      const OutputPart whole = parse_pieces(format, {answer});
      for (const size_t size : {1, 2, 5}) {
        CHECK(summary(parse_pieces(format, pieces_of(answer, size))) == summary(whole));
      }
      with_calls += whole.calls.empty() ? 0 : 1;
    }
  }
  CHECK(with_calls > 100);
}

TEST_CASE("the source of a template tells its formats") {
  const std::array<std::pair<const char*, ToolFormat>, 26> kSources = {{
      {"<|channel|>commentary to=functions.x<|message|>", ToolFormat::kHarmony},
      {"[TOOL_CALLS] [", ToolFormat::kMistral},
      {"[TOOL_CALLS]x[CALL_ID]y[ARGS]", ToolFormat::kMistralV11},
      {"[TOOL_CALLS]x[ARGS]", ToolFormat::kMistralV13},
      {"<｜tool▁calls▁begin｜>```json", ToolFormat::kDeepSeekV3},
      {"<｜tool▁calls▁begin｜><｜tool▁sep｜>", ToolFormat::kDeepSeekV31},
      {"<｜DSML｜function_calls>", ToolFormat::kDeepSeekV32},
      {"<｜DSML｜tool_calls>", ToolFormat::kDeepSeekV4},
      {"<｜DSML｜ calls>", ToolFormat::kDeepSeekV41},
      {"<|tool_list_start|>", ToolFormat::kLfm2},
      {"'List of tools: ' + '<|im_start|>system'", ToolFormat::kLfm2},
      {"<tool_call><function=x><parameter=y>", ToolFormat::kQwen3Coder},
      {"<tool_call>x\n<arg_key>a</arg_key>\n<arg_value>", ToolFormat::kGlm45},
      {"<tool_call>x<arg_key>a</arg_key><arg_value>", ToolFormat::kGlm47},
      {"set t = ':opensource'; '<tool_call{}>'.format(t) + '<tool_sep{}>'.format(t)", ToolFormat::kHunyuan3},
      {"<tool_call:opensource>x<tool_sep:opensource>", ToolFormat::kHunyuan3},
      {"<tool_call>x<tool_sep>\n<arg_key>a</arg_key>\n<arg_value>", ToolFormat::kHunyuan3Preview},
      {"<|tool_calls_section_begin|>", ToolFormat::kKimiK2},
      {"<minimax:tool_call>", ToolFormat::kMiniMaxM2},
      {"<|tool_call>call:x<tool_call|>", ToolFormat::kGemma4},
      {"<start_function_call>call:", ToolFormat::kFunctionGemma},
      {"<|tool_call|>[]<|/tool_call|>", ToolFormat::kPhi4},
      {"with <|tool_call|> followed by a JSON list", ToolFormat::kGranite},
      {"<TOOLCALL>[{\"name\": x, \"arguments\": y}]</TOOLCALL>", ToolFormat::kNemotron},
      {"<|START_ACTION|>", ToolFormat::kCommand},
      {"<|header_start|> {\"name\": x, \"parameters\": y}", ToolFormat::kLlama3},
  }};
  for (const auto& [source, format] : kSources) {
    INFO(source);
    CHECK(detect_tool_format(source) == format);
  }
  CHECK_FALSE(detect_tool_format("<tool_call><function=x>"));
  CHECK(detect_reasoning_format("<|channel>thought") == ReasoningFormat::kGemma4);
  CHECK(detect_reasoning_format("[THINK]x[/THINK]") == ReasoningFormat::kMistral);
  CHECK(detect_reasoning_format("<|channel|>analysis<|message|>") == ReasoningFormat::kHarmony);
  CHECK(detect_reasoning_format("set t = ':opensource'; '</think{}>'.format(t)") == ReasoningFormat::kHunyuan3);
  CHECK(detect_reasoning_format("</think:opensource>") == ReasoningFormat::kHunyuan3);
  CHECK_FALSE(detect_reasoning_format("plain"));
}
