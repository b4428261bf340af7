#include <algorithm>
#include <initializer_list>

#include "text/tool_calls/tool_formats.h"

namespace millrace::text {
namespace {

bool mentions(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

bool has_all(std::string_view text, std::initializer_list<std::string_view> parts) {
  return std::ranges::all_of(parts, [text](std::string_view part) { return mentions(text, part); });
}

/// Words of a template's source, and the format that they prove. The first row whose words all occur decides.
struct Evidence {
  std::initializer_list<std::string_view> words;
  std::optional<ToolFormat> format;
};

std::optional<ToolFormat> detect_tool_call_tags(std::string_view source) {
  if (has_all(source, {"<function=", "<parameter="})) return ToolFormat::kQwen3Coder;
  if (mentions(source, "</arg_key><arg_value>")) return ToolFormat::kGlm47;
  if (mentions(source, "<arg_key>")) return ToolFormat::kGlm45;
  // Others write something else than JSON between the same tags.
  return mentions(source, "<function=") ? std::nullopt : std::optional(ToolFormat::kHermes);
}

}  // namespace

std::optional<ToolFormat> detect_tool_format(std::string_view source) {
  using enum ToolFormat;
  const std::initializer_list<Evidence> evidence = {
      {{"<|channel|>", "<|message|>", "functions"}, kHarmony},
      {{"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"}, kMistralV11},
      {{"[TOOL_CALLS]", "[ARGS]"}, kMistralV13},
      {{"[TOOL_CALLS]"}, kMistral},
      {{"｜DSML｜ calls>"}, kDeepSeekV41},
      {{"｜DSML｜", "function_calls"}, kDeepSeekV32},
      {{"｜DSML｜", "tool_calls>"}, kDeepSeekV4},
      {{"<｜tool▁calls▁begin｜>", "```json"}, kDeepSeekV3},
      {{"<｜tool▁calls▁begin｜>"}, kDeepSeekV31},
      {{"<|tool_calls_section_begin|>"}, kKimiK2},
      // The template writes each tag by str.format, with a suffix.
      {{"<tool_sep{}>", ":opensource"}, kHunyuan3},
      {{"<tool_sep:opensource>"}, kHunyuan3},
      {{"<tool_sep>", "<arg_key>"}, kHunyuan3Preview},
      {{"<|tool_call_start|>"}, kLfm2},
      {{"<|tool_list_start|>"}, kLfm2},
      {{"List of tools: ", "<|im_start|>"}, kLfm2},
      {{"<minimax:tool_call>"}, kMiniMaxM2},
      {{"<start_function_call>"}, kFunctionGemma},
      {{"<|tool_call>", "<tool_call|>"}, kGemma4},
      {{"<TOOLCALL>"}, kNemotron},
      {{"<|START_ACTION|>"}, kCommand},
      {{"<|/tool_call|>"}, kPhi4},
      {{"functools["}, kPhi4Mini},
      {{"<|tool_call|>"}, kGranite},
  };
  for (const Evidence& each : evidence) {
    if (has_all(source, each.words)) return each.format;
  }
  if (mentions(source, "<tool_call>")) return detect_tool_call_tags(source);
  if (mentions(source, "[func_name1(")) return kPythonic;
  const bool is_llama = mentions(source, "<|start_header_id|>") || mentions(source, "<|header_start|>");
  if (is_llama && mentions(source, "\"parameters\"")) return kLlama3;
  return std::nullopt;
}

}  // namespace millrace::text
