#include "text/tool_calls/tool_formats.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/json.h"
#include "text/tool_calls/partial_match.h"

namespace millrace::text {
namespace {

using enum ArgumentNotation;
using Words = std::span<const std::string_view>;

constexpr std::string_view kObjectName = "{\"name\": \"";
constexpr std::string_view kObjectArguments = "\", \"arguments\": ";
constexpr std::string_view kObjectParameters = "\", \"parameters\": ";

constexpr ParameterTags kQwenTags{
    .open = "<parameter=", .key_end = ">", .value_open = "\n", .value_end = "\n</parameter>\n", .frames_lines = true};
constexpr ParameterTags kMiniMaxTags{
    .open = "<parameter name=\"", .key_end = "\">", .value_open = "", .value_end = "</parameter>\n"};
constexpr ParameterTags kGlm45Tags{
    .open = "<arg_key>", .key_end = "</arg_key>", .value_open = "\n<arg_value>", .value_end = "</arg_value>\n"};
constexpr ParameterTags kGlm47Tags{
    .open = "<arg_key>", .key_end = "</arg_key>", .value_open = "<arg_value>", .value_end = "</arg_value>"};
constexpr ParameterTags kHunyuan3Tags{.open = "<arg_key:opensource>",
                                      .key_end = "</arg_key:opensource>",
                                      .value_open = "\n<arg_value:opensource>",
                                      .value_end = "</arg_value:opensource>\n"};
constexpr ParameterTags kDsmlTags{.open = "<｜DSML｜parameter name=\"",
                                  .key_end = "\"",
                                  .value_open = " string=\"true\">",
                                  .value_end = "</｜DSML｜parameter>\n",
                                  .has_string_attribute = true};
constexpr ParameterTags kDsml41Tags{.open = "<｜DSML｜ parameter name=\"",
                                    .key_end = "\"",
                                    .value_open = " string=\"true\">",
                                    .value_end = "</｜DSML｜ parameter>\n",
                                    .has_string_attribute = true};

constexpr LiteralDialect kPython{.open = '(',
                                 .close = ')',
                                 .key_end = '=',
                                 .quote = "",
                                 .true_word = "True",
                                 .false_word = "False",
                                 .null_word = "None"};
constexpr LiteralDialect kGemma4Dialect{
    .open = '{', .close = '}', .key_end = ':', .quote = "<|\"|>", .separator = ",", .sorts_keys = true};
constexpr LiteralDialect kFunctionGemmaDialect{.open = '{',
                                               .close = '}',
                                               .key_end = ':',
                                               .quote = "<escape>",
                                               .separator = ",",
                                               .sorts_keys = true,
                                               .types_strings = true};

constexpr std::array<std::string_view, 2> kMistralNameEnds = {"[CALL_ID]", "[ARGS]"};
constexpr std::array<std::string_view, 3> kDeepSeekNameEnds = {"<｜tool▁sep｜>", "\n", "```"};
constexpr std::array<std::string_view, 2> kKimiNameEnds = {":", "<|tool_call_argument_begin|>"};
constexpr std::array<std::string_view, 1> kTagNameEnds = {">"};
constexpr std::array<std::string_view, 1> kQuotedNameEnds = {"\">"};
constexpr std::array<std::string_view, 2> kGlmNameEnds = {"\n", "<"};
constexpr std::array<std::string_view, 3> kHunyuan3NameEnds = {"<tool_sep:opensource>", "<arg_key:opensource>",
                                                               "</tool_call:opensource>"};
constexpr std::array<std::string_view, 3> kHunyuan3PreviewNameEnds = {"<tool_sep>", "<arg_key>", "</tool_call>"};

constexpr std::array kHermes = {ToolCallSyntax{.call_open = "<tool_call>\n",
                                               .before_name = kObjectName,
                                               .before_arguments = kObjectArguments,
                                               .after_arguments = "}",
                                               .call_close = "\n</tool_call>",
                                               .separator = "\n"}};
constexpr std::array kLlama = {ToolCallSyntax{.before_name = kObjectName,
                                              .before_arguments = kObjectParameters,
                                              .after_arguments = "}",
                                              .separator = "; ",
                                              .is_whole_output = true}};
constexpr ToolCallSyntax kMistralList{.section_open = "[TOOL_CALLS]",
                                      .list_open = " [",
                                      .before_name = kObjectName,
                                      .before_arguments = kObjectArguments,
                                      .after_arguments = "}",
                                      .separator = ", ",
                                      .list_close = "]"};
constexpr ToolCallSyntax kMistralPlain{
    .call_open = "[TOOL_CALLS]", .before_arguments = "[ARGS]", .notation = kJson, .name_ends = kMistralNameEnds};
constexpr ToolCallSyntax kMistralWithId{.call_open = "[TOOL_CALLS]",
                                        .before_arguments = "[ARGS]",
                                        .notation = kJson,
                                        .name_ends = kMistralNameEnds,
                                        .id = CallIdSyntax::kNineCharacters,
                                        .id_open = "[CALL_ID]"};
constexpr std::array kMistral = {kMistralList, kMistralPlain, kMistralWithId};
constexpr std::array kMistral11 = {kMistralWithId};
constexpr std::array kMistral13 = {kMistralPlain};
constexpr std::array kMistralRead = {kMistralList, kMistralWithId};
constexpr std::array kDeepSeek3 = {ToolCallSyntax{.section_open = "<｜tool▁calls▁begin｜>",
                                                  .call_open = "<｜tool▁call▁begin｜>",
                                                  .before_name = "function<｜tool▁sep｜>",
                                                  .before_arguments = "\n```json\n",
                                                  .after_arguments = "\n```",
                                                  .call_close = "<｜tool▁call▁end｜>",
                                                  .separator = "\n",
                                                  .section_close = "<｜tool▁calls▁end｜>",
                                                  .notation = kJson,
                                                  .name_ends = kDeepSeekNameEnds}};
constexpr std::array kDeepSeek31 = {ToolCallSyntax{.section_open = "<｜tool▁calls▁begin｜>",
                                                   .call_open = "<｜tool▁call▁begin｜>",
                                                   .before_arguments = "<｜tool▁sep｜>",
                                                   .call_close = "<｜tool▁call▁end｜>",
                                                   .section_close = "<｜tool▁calls▁end｜>",
                                                   .notation = kJson,
                                                   .name_ends = kDeepSeekNameEnds}};
constexpr ToolCallSyntax dsml(std::string_view open, std::string_view close) {
  return {.section_open = open,
          .before_name = "<｜DSML｜invoke name=\"",
          .before_arguments = "\">\n",
          .after_arguments = "</｜DSML｜invoke>",
          .separator = "\n",
          .section_close = close,
          .notation = kParameters,
          .tags = &kDsmlTags,
          .name_ends = kQuotedNameEnds,
          .name_needs_before_name = true};
}
constexpr ToolCallSyntax kDsml32 = dsml("<｜DSML｜function_calls>\n", "\n</｜DSML｜function_calls>");
constexpr ToolCallSyntax kDsml4 = dsml("<｜DSML｜tool_calls>\n", "\n</｜DSML｜tool_calls>");
/// V4.1 writes a blank before the name of each tag.
constexpr ToolCallSyntax dsml41() {
  ToolCallSyntax syntax = dsml("<｜DSML｜ calls>\n", "\n</｜DSML｜ calls>");
  syntax.before_name = "<｜DSML｜ invoke name=\"";
  syntax.after_arguments = "</｜DSML｜ invoke>";
  syntax.tags = &kDsml41Tags;
  return syntax;
}
constexpr std::array kDeepSeek41 = {dsml41()};
constexpr std::array kDeepSeek32 = {kDsml32};
constexpr std::array kDeepSeek4 = {kDsml4};
constexpr std::array kDsmlRead = {kDsml32, kDsml4};
constexpr std::array kQwen3Coder = {ToolCallSyntax{.call_open = "<tool_call>\n",
                                                   .before_name = "<function=",
                                                   .before_arguments = ">\n",
                                                   .after_arguments = "</function>",
                                                   .call_close = "\n</tool_call>",
                                                   .separator = "\n",
                                                   .notation = kParameters,
                                                   .tags = &kQwenTags,
                                                   .name_ends = kTagNameEnds,
                                                   .name_needs_before_name = true}};
constexpr std::array kGlm45 = {ToolCallSyntax{.call_open = "<tool_call>",
                                              .before_arguments = "\n",
                                              .call_close = "</tool_call>",
                                              .separator = "\n",
                                              .notation = kParameters,
                                              .tags = &kGlm45Tags,
                                              .name_ends = kGlmNameEnds}};
constexpr std::array kGlm47 = {ToolCallSyntax{.call_open = "<tool_call>",
                                              .call_close = "</tool_call>",
                                              .notation = kParameters,
                                              .tags = &kGlm47Tags,
                                              .name_ends = kGlmNameEnds}};
constexpr std::array kHunyuan3 = {ToolCallSyntax{.section_open = "<tool_calls:opensource>\n",
                                                 .call_open = "<tool_call:opensource>",
                                                 .before_arguments = "<tool_sep:opensource>\n",
                                                 .call_close = "</tool_call:opensource>",
                                                 .separator = "\n",
                                                 .section_close = "\n</tool_calls:opensource>",
                                                 .notation = kParameters,
                                                 .tags = &kHunyuan3Tags,
                                                 .name_ends = kHunyuan3NameEnds}};
constexpr std::array kHunyuan3Preview = {ToolCallSyntax{.section_open = "<tool_calls>\n",
                                                        .call_open = "<tool_call>",
                                                        .before_arguments = "<tool_sep>\n",
                                                        .call_close = "</tool_call>",
                                                        .separator = "\n",
                                                        .section_close = "\n</tool_calls>",
                                                        .notation = kParameters,
                                                        .tags = &kGlm45Tags,
                                                        .name_ends = kHunyuan3PreviewNameEnds}};
constexpr std::array kKimi = {ToolCallSyntax{.section_open = "<|tool_calls_section_begin|>",
                                             .call_open = "<|tool_call_begin|>",
                                             .before_name = "functions.",
                                             .before_arguments = "<|tool_call_argument_begin|>",
                                             .call_close = "<|tool_call_end|>",
                                             .section_close = "<|tool_calls_section_end|>",
                                             .notation = kJson,
                                             .name_ends = kKimiNameEnds,
                                             .id = CallIdSyntax::kNumber,
                                             .id_open = ":"}};
constexpr std::array kMiniMax = {ToolCallSyntax{.section_open = "<minimax:tool_call>\n",
                                                .before_name = "<invoke name=\"",
                                                .before_arguments = "\">\n",
                                                .after_arguments = "</invoke>",
                                                .separator = "\n",
                                                .section_close = "\n</minimax:tool_call>",
                                                .notation = kParameters,
                                                .tags = &kMiniMaxTags,
                                                .name_ends = kQuotedNameEnds,
                                                .name_needs_before_name = true}};
constexpr std::array kGemma4 = {ToolCallSyntax{.call_open = "<|tool_call>",
                                               .before_name = "call:",
                                               .call_close = "<tool_call|>",
                                               .notation = kLiterals,
                                               .dialect = &kGemma4Dialect,
                                               .name_needs_before_name = true}};
constexpr std::array kFunctionGemma = {ToolCallSyntax{.call_open = "<start_function_call>",
                                                      .before_name = "call:",
                                                      .call_close = "<end_function_call>",
                                                      .notation = kLiterals,
                                                      .dialect = &kFunctionGemmaDialect,
                                                      .name_needs_before_name = true}};
constexpr std::array kPythonic = {ToolCallSyntax{.list_open = "[",
                                                 .separator = ", ",
                                                 .list_close = "]",
                                                 .notation = kLiterals,
                                                 .dialect = &kPython,
                                                 .is_whole_output = true}};
constexpr std::array kLfm2 = {ToolCallSyntax{.section_open = "<|tool_call_start|>",
                                             .list_open = "[",
                                             .separator = ", ",
                                             .list_close = "]",
                                             .section_close = "<|tool_call_end|>",
                                             .notation = kLiterals,
                                             .dialect = &kPython}};
constexpr std::array kPhi4Mini = {ToolCallSyntax{.section_open = "functools",
                                                 .list_open = "[",
                                                 .before_name = kObjectName,
                                                 .before_arguments = kObjectArguments,
                                                 .after_arguments = "}",
                                                 .separator = ", ",
                                                 .list_close = "]"}};
constexpr std::array kPhi4 = {ToolCallSyntax{.call_open = "<|tool_call|>",
                                             .before_name = kObjectName,
                                             .before_arguments = kObjectArguments,
                                             .after_arguments = "}",
                                             .call_close = "<|/tool_call|>"}};
constexpr std::array kPhi4Read = {kPhi4Mini[0], kPhi4[0]};
constexpr std::array kGranite = {ToolCallSyntax{.section_open = "<|tool_call|>",
                                                .list_open = "[",
                                                .before_name = kObjectName,
                                                .before_arguments = kObjectArguments,
                                                .after_arguments = "}",
                                                .separator = ", ",
                                                .list_close = "]"}};
constexpr std::array kNemotron = {ToolCallSyntax{.section_open = "<TOOLCALL>",
                                                 .list_open = "[",
                                                 .before_name = kObjectName,
                                                 .before_arguments = kObjectArguments,
                                                 .after_arguments = "}",
                                                 .separator = ", ",
                                                 .list_close = "]",
                                                 .section_close = "</TOOLCALL>"}};
constexpr std::array kCommand = {ToolCallSyntax{.section_open = "<|START_ACTION|>",
                                                .list_open = "[\n    ",
                                                .before_name = "\", \"tool_name\": \"",
                                                .before_arguments = kObjectParameters,
                                                .after_arguments = "}",
                                                .separator = ",\n    ",
                                                .list_close = "\n]",
                                                .section_close = "<|END_ACTION|>",
                                                .id = CallIdSyntax::kNumber,
                                                .id_open = "{\"tool_call_id\": \"",
                                                .id_is_first = true}};
constexpr std::array kHarmony = {ToolCallSyntax{.call_open = "<|channel|>commentary to=functions.",
                                                .before_arguments = " <|constrain|>json<|message|>",
                                                .notation = kJson,
                                                .allows_one_call = true,
                                                .cuts = kHarmonyEnds}};

constexpr std::array kPythonicRead = {kPythonic[0], kLlama[0]};

constexpr std::array<std::string_view, 3> kLlamaAlso = {"<|python_tag|>", "<|python_start|>", "<|python_end|>"};
constexpr std::array<std::string_view, 2> kPhi4Also = {"<|tool_call|>", "<|/tool_call|>"};
constexpr std::array<std::string_view, 2> kGraniteAlso = {"<tool_call>", "</tool_call>"};
constexpr std::array<std::string_view, 2> kKimiAlso = {"<|tool_call_section_begin|>", "<|tool_call_section_end|>"};
constexpr Words kNoWords;

constexpr std::array<ToolFormatRow, kToolFormatCount> kRows = {{
    {ToolFormat::kHermes, "hermes", kHermes, kHermes, kNoWords},
    {ToolFormat::kLlama3, "llama3_json", kLlama, kLlama, kLlamaAlso},
    {ToolFormat::kMistral, "mistral", kMistral, kMistralRead, kNoWords},
    {ToolFormat::kMistralV11, "mistral_v11", kMistral11, kMistralRead, kNoWords},
    {ToolFormat::kMistralV13, "mistral_v13", kMistral13, kMistralRead, kNoWords},
    {ToolFormat::kDeepSeekV3, "deepseek_v3", kDeepSeek3, kDeepSeek3, kNoWords},
    {ToolFormat::kDeepSeekV31, "deepseek_v31", kDeepSeek31, kDeepSeek3, kNoWords},
    {ToolFormat::kDeepSeekV32, "deepseek_v32", kDeepSeek32, kDsmlRead, kNoWords},
    {ToolFormat::kDeepSeekV4, "deepseek_v4", kDeepSeek4, kDsmlRead, kNoWords},
    {ToolFormat::kDeepSeekV41, "deepseek_v41", kDeepSeek41, kDeepSeek41, kNoWords},
    {ToolFormat::kQwen3Coder, "qwen3_coder", kQwen3Coder, kQwen3Coder, kNoWords},
    {ToolFormat::kGlm45, "glm45", kGlm45, kGlm45, kNoWords},
    {ToolFormat::kGlm47, "glm47", kGlm47, kGlm47, kNoWords},
    {ToolFormat::kHunyuan3, "hy_v3", kHunyuan3, kHunyuan3, kNoWords},
    {ToolFormat::kHunyuan3Preview, "hy_v3_preview", kHunyuan3Preview, kHunyuan3Preview, kNoWords},
    {ToolFormat::kKimiK2, "kimi_k2", kKimi, kKimi, kKimiAlso, true},
    {ToolFormat::kMiniMaxM2, "minimax_m2", kMiniMax, kMiniMax, kNoWords},
    {ToolFormat::kGemma4, "gemma4", kGemma4, kGemma4, kNoWords},
    {ToolFormat::kFunctionGemma, "functiongemma", kFunctionGemma, kFunctionGemma, kNoWords},
    {ToolFormat::kPythonic, "pythonic", kPythonic, kPythonicRead, kLlamaAlso},
    {ToolFormat::kLfm2, "lfm2", kLfm2, kLfm2, kNoWords},
    {ToolFormat::kPhi4Mini, "phi4_mini_json", kPhi4Mini, kPhi4Read, kPhi4Also},
    {ToolFormat::kPhi4, "phi4", kPhi4, kPhi4Read, kPhi4Also},
    {ToolFormat::kGranite, "granite", kGranite, kGranite, kGraniteAlso},
    {ToolFormat::kNemotron, "nemotron", kNemotron, kNemotron, kNoWords},
    {ToolFormat::kCommand, "command", kCommand, kCommand, kNoWords},
    {ToolFormat::kHarmony, "harmony", kHarmony, kHarmony, kNoWords},
}};

struct Alias {
  std::string_view name;
  ToolFormat format;
};
constexpr std::array kAliases = {Alias{"qwen", ToolFormat::kHermes},
                                 Alias{"qwen25", ToolFormat::kHermes},
                                 Alias{"granite4", ToolFormat::kHermes},
                                 Alias{"llama3", ToolFormat::kLlama3},
                                 Alias{"llama4_json", ToolFormat::kLlama3},
                                 Alias{"llama4_pythonic", ToolFormat::kPythonic},
                                 Alias{"deepseekv3", ToolFormat::kDeepSeekV3},
                                 Alias{"deepseekv31", ToolFormat::kDeepSeekV31},
                                 Alias{"deepseekv32", ToolFormat::kDeepSeekV32},
                                 Alias{"deepseekv4", ToolFormat::kDeepSeekV4},
                                 Alias{"deepseekv41", ToolFormat::kDeepSeekV41},
                                 Alias{"qwen3_xml", ToolFormat::kQwen3Coder},
                                 Alias{"glm", ToolFormat::kGlm45},
                                 Alias{"glm46", ToolFormat::kGlm45},
                                 Alias{"minimax-m2", ToolFormat::kMiniMaxM2},
                                 Alias{"openai", ToolFormat::kHarmony},
                                 Alias{"gpt-oss", ToolFormat::kHarmony},
                                 Alias{"command_r7b", ToolFormat::kCommand},
                                 Alias{"command_a", ToolFormat::kCommand},
                                 Alias{"cohere_command3", ToolFormat::kCommand}};

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace

const ToolFormatRow& row_of(ToolFormat format) {
  const ToolFormatRow& row = kRows[static_cast<size_t>(format)];
  CHECK(row.format == format, "the rows are in the order of the formats");
  return row;
}

std::string_view to_string(ToolFormat format) {
  return row_of(format).name;
}

std::vector<std::string> tool_format_names() {
  std::vector<std::string> names;
  for (const ToolFormatRow& row : kRows) names.emplace_back(row.name);
  return names;
}

std::vector<std::string> tool_format_aliases() {
  std::vector<std::string> names;
  for (const Alias& alias : kAliases) names.emplace_back(alias.name);
  return names;
}

std::optional<ToolFormat> parse_tool_format(std::string_view word) {
  const auto* row = std::ranges::find(kRows, word, &ToolFormatRow::name);
  if (row != kRows.end()) return row->format;
  const auto* alias = std::ranges::find(kAliases, word, &Alias::name);
  return alias == kAliases.end() ? std::nullopt : std::optional(alias->format);
}

std::string ToolCallSyntax::escaped_name(std::string_view name) const {
  if (notation != ArgumentNotation::kJsonCall) return std::string(name);
  std::string quoted;
  append_json_string(quoted, name);
  return quoted.substr(1, quoted.size() - 2);
}

std::vector<std::string_view> ToolCallSyntax::value_ends() const {
  if (tags == nullptr) return {cuts.begin(), cuts.end()};
  std::vector<std::string_view> ends = {without_space(tags->value_end)};
  // Only these tags are made of a token that text does not have.
  if (tags->has_string_attribute) {
    ends.insert(ends.end(), {without_space(tags->open), without_space(after_arguments)});
  }
  return ends;
}

bool ToolCallSyntax::can_write(std::string_view name) const {
  if (notation == ArgumentNotation::kJsonCall) return !name.empty();
  return !name.empty() && std::ranges::all_of(name, [](char c) {
    return c == '_' || c == '.' || c == '-' || c == '/' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
           (c >= 'A' && c <= 'Z') || static_cast<unsigned char>(c) >= 0x80;
  });
}

std::string_view tool_call_start_tag(ToolFormat format) {
  // A recipient may stand before the channel.
  if (format == ToolFormat::kHarmony) return " to=functions.";
  const ToolCallSyntax& syntax = row_of(format).written.front();
  if (syntax.is_whole_output) return {};
  return without_space(syntax.section_open.empty() ? syntax.call_open : syntax.section_open);
}

bool is_tool_call_tag(std::string_view spelling) {
  if (spelling.size() < 2) return false;
  // Anything may come after <|python_tag|>, so no syntax has it.
  for (const ToolFormatRow& row : kRows) {
    for (const ToolCallSyntax& syntax : row.written) {
      for (const std::string_view part :
           {syntax.section_open, syntax.call_open, syntax.before_name, syntax.before_arguments, syntax.after_arguments,
            syntax.call_close, syntax.section_close, syntax.id_open}) {
        if (has(part, spelling)) return true;
      }
      if (syntax.dialect != nullptr && syntax.dialect->quote == spelling) return true;
      if (syntax.tags == nullptr) continue;
      for (const std::string_view part :
           {syntax.tags->open, syntax.tags->key_end, syntax.tags->value_open, syntax.tags->value_end}) {
        if (has(part, spelling)) return true;
      }
    }
  }
  return false;
}

bool needs_parameter_types(ToolFormat format) {
  return std::ranges::any_of(row_of(format).read, [](const ToolCallSyntax& syntax) {
    return syntax.notation == ArgumentNotation::kParameters ||
           (syntax.dialect != nullptr && syntax.dialect->types_strings);
  });
}

std::string tool_call_prefix(ToolFormat format, std::string_view name) {
  const ToolCallSyntax& syntax = row_of(format).written.front();
  std::string prefix = std::string(syntax.section_open) + std::string(syntax.list_open) + std::string(syntax.call_open);
  if (syntax.id_is_first) {
    prefix += syntax.id_open;
  } else {
    prefix += syntax.before_name;
    if (!name.empty()) {
      prefix += syntax.escaped_name(name);
      prefix += syntax.id == CallIdSyntax::kNone ? syntax.before_arguments : syntax.id_open;
    }
  }
  if (prefix.ends_with('"')) prefix.pop_back();
  if (prefix.ends_with(' ')) prefix.pop_back();
  return prefix;
}

}  // namespace millrace::text
