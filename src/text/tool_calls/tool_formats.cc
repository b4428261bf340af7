#include "text/tool_calls/tool_formats.h"

#include <algorithm>
#include <array>

#include "base/json.h"

namespace millrace::text {
namespace {

struct FormatName {
  std::string_view word;
  ToolFormat format;
};
constexpr std::array kFormats = {
    FormatName{"hermes", ToolFormat::kHermes}, FormatName{"llama3_json", ToolFormat::kLlama3},
    FormatName{"mistral", ToolFormat::kMistral}, FormatName{"deepseek_v3", ToolFormat::kDeepSeekV3},
    FormatName{"qwen3_coder", ToolFormat::kQwen3Coder}};

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace

std::string_view to_string(ToolFormat format) {
  const auto* it = std::ranges::find(kFormats, format, &FormatName::format);
  return it == kFormats.end() ? "?" : it->word;
}

std::vector<std::string> tool_format_names() {
  std::vector<std::string> names;
  for (const FormatName& format : kFormats) names.emplace_back(format.word);
  return names;
}

std::optional<ToolFormat> parse_tool_format(std::string_view word) {
  const auto* it = std::ranges::find(kFormats, word, &FormatName::word);
  return it == kFormats.end() ? std::nullopt : std::optional(it->format);
}

std::optional<ToolFormat> detect_tool_format(std::string_view source) {
  if (has(source, kMistralOpen)) return ToolFormat::kMistral;
  if (has(source, kDeepSeekOpen)) return ToolFormat::kDeepSeekV3;
  // Others write something else than JSON between the same tags.
  if (has(source, kHermesOpen)) {
    if (has(source, kFunctionOpen) && has(source, kParameterOpen)) return ToolFormat::kQwen3Coder;
    const bool is_other = has(source, kFunctionOpen) || has(source, "<arg_key>");
    return is_other ? std::nullopt : std::optional(ToolFormat::kHermes);
  }
  if (has(source, "<|start_header_id|>") && has(source, "\"parameters\"")) return ToolFormat::kLlama3;
  return std::nullopt;
}

std::string ToolCallSyntax::escaped_name(std::string_view name) const {
  if (!before_name.ends_with('"')) return std::string(name);
  std::string quoted;
  append_json_string(quoted, name);
  return quoted.substr(1, quoted.size() - 2);
}

std::span<const ToolCallSyntax> tool_call_syntaxes(ToolFormat format) {
  static constexpr std::array kHermesSyntaxes = {ToolCallSyntax{
      "<tool_call>\n", "{\"name\": \"", "\", \"arguments\": ", "}", "\n</tool_call>\n<tool_call>\n", "\n</tool_call>"}};
  static constexpr std::array kLlamaSyntaxes = {
      ToolCallSyntax{"", "{\"name\": \"", "\", \"parameters\": ", "}", "; ", ""}};
  static constexpr std::array kMistralSyntaxes = {
      ToolCallSyntax{"[TOOL_CALLS] [", "{\"name\": \"", "\", \"arguments\": ", "}", ", ", "]"},
      ToolCallSyntax{"[TOOL_CALLS]", "", "[ARGS]", "", "[TOOL_CALLS]", ""}};
  static constexpr std::array kDeepSeekSyntaxes = {
      ToolCallSyntax{"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "function<｜tool▁sep｜>", "\n```json\n",
                     "\n```<｜tool▁call▁end｜>", "\n<｜tool▁call▁begin｜>", "<｜tool▁calls▁end｜>"},
      ToolCallSyntax{"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>",
                     "<｜tool▁call▁begin｜>", "<｜tool▁calls▁end｜>"}};
  static constexpr std::array kQwen3CoderSyntaxes = {ToolCallSyntax{"<tool_call>\n", "<function=", ">\n", "</function>",
                                                                    "\n</tool_call>\n<tool_call>\n", "\n</tool_call>",
                                                                    ToolCallSyntax::Arguments::kParameters}};
  switch (format) {
    case ToolFormat::kHermes: return kHermesSyntaxes;
    case ToolFormat::kLlama3: return kLlamaSyntaxes;
    case ToolFormat::kMistral: return kMistralSyntaxes;
    case ToolFormat::kDeepSeekV3: return kDeepSeekSyntaxes;
    case ToolFormat::kQwen3Coder: break;
  }
  return kQwen3CoderSyntaxes;
}

std::string_view tool_call_start_tag(ToolFormat format) {
  switch (format) {
    case ToolFormat::kLlama3: return {};
    case ToolFormat::kMistral: return kMistralOpen;
    case ToolFormat::kDeepSeekV3: return kDeepSeekOpen;
    case ToolFormat::kHermes:
    case ToolFormat::kQwen3Coder: break;
  }
  return kHermesOpen;
}

bool is_tool_call_tag(std::string_view spelling) {
  // Not <|python_tag|>, behind which anything may come.
  static constexpr std::array kTags = {kHermesOpen,       kHermesClose,     kMistralOpen,
                                       kMistralArguments, kDeepSeekOpen,    kDeepSeekClose,
                                       kDeepSeekCall,     kDeepSeekCallEnd, kDeepSeekSeparator};
  return std::ranges::find(kTags, spelling) != kTags.end();
}

std::string tool_call_prefix(ToolFormat format, std::string_view name) {
  const ToolCallSyntax& syntax = tool_call_syntaxes(format).front();
  std::string prefix = std::string(syntax.open) + std::string(syntax.before_name);
  if (!name.empty()) prefix += syntax.escaped_name(name) + std::string(syntax.before_arguments);
  if (prefix.ends_with('"')) prefix.pop_back();
  if (prefix.ends_with(' ')) prefix.pop_back();
  return prefix;
}

}  // namespace millrace::text
