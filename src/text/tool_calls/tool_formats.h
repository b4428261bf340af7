#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// The formats in which models write tool calls.
namespace millrace::text {

/// A format of tool calls, named after the parser in vLLM.
///   hermes       <tool_call>{"name": …, "arguments": {…}}</tool_call>, repeated (Hermes, Qwen 2.5 and 3)
///   llama3_json  an answer that is {"name": …, "parameters": {…}}, several after ";", <|python_tag|> before it or not
///   mistral      [TOOL_CALLS][{"name": …, "arguments": {…}}, …], and of later models [TOOL_CALLS]name[ARGS]{…}
///   deepseek_v3  <｜tool▁calls▁begin｜>, and per call function<｜tool▁sep｜>name, the arguments in a fenced block; of
///                later models name<｜tool▁sep｜>{…}
///   qwen3_coder  <tool_call><function=name><parameter=key>value</parameter>…</function></tool_call>, with a line for
///                each (Qwen3-Coder)
enum class ToolFormat : uint8_t { kHermes, kLlama3, kMistral, kDeepSeekV3, kQwen3Coder };

[[nodiscard]] std::string_view to_string(ToolFormat format);
[[nodiscard]] std::vector<std::string> tool_format_names();
[[nodiscard]] std::optional<ToolFormat> parse_tool_format(std::string_view word);
/// Returns the format that a chat template's source asks for, or nothing if it names none.
[[nodiscard]] std::optional<ToolFormat> detect_tool_format(std::string_view source);

/// The text around names and arguments in the trained format: `open`, calls with `separator` between them, `close`. The
/// parser accepts more than this.
struct ToolCallSyntax {
  enum class Arguments : uint8_t {
    kJson,        ///< an object
    kParameters,  ///< kParameterOpen, the key, ">", a line with the value, kParameterEnd, and a line's end, for each
  };
  std::string_view open;
  std::string_view before_name;
  std::string_view before_arguments;
  std::string_view after_arguments;
  std::string_view separator;
  std::string_view close;
  Arguments arguments = Arguments::kJson;
  /// Returns the name as the format writes it, with JSON escapes where it is a JSON string.
  [[nodiscard]] std::string escaped_name(std::string_view name) const;
};
/// Returns the syntaxes of a format, the usual one first.
[[nodiscard]] std::span<const ToolCallSyntax> tool_call_syntaxes(ToolFormat format);
/// Returns the marker that precedes calls and never occurs in other text. Empty if calls are the whole output.
[[nodiscard]] std::string_view tool_call_start_tag(ToolFormat format);
/// Returns whether calls are written with a token of this spelling, special or not.
[[nodiscard]] bool is_tool_call_tag(std::string_view spelling);

/// Returns the beginning of an output that calls the tool `name`, up to its arguments, or up to the name if it is
/// empty. Leaves out the space or quotation mark that begins the model's next token.
[[nodiscard]] std::string tool_call_prefix(ToolFormat format, std::string_view name);

// The words of the formats, for those that read them.
inline constexpr std::string_view kHermesOpen = "<tool_call>";
inline constexpr std::string_view kHermesClose = "</tool_call>";
inline constexpr std::string_view kPythonTag = "<|python_tag|>";
inline constexpr std::string_view kMistralOpen = "[TOOL_CALLS]";
inline constexpr std::string_view kDeepSeekOpen = "<｜tool▁calls▁begin｜>";
inline constexpr std::string_view kDeepSeekClose = "<｜tool▁calls▁end｜>";
inline constexpr std::string_view kDeepSeekCall = "<｜tool▁call▁begin｜>";
inline constexpr std::string_view kDeepSeekCallEnd = "<｜tool▁call▁end｜>";
inline constexpr std::string_view kDeepSeekSeparator = "<｜tool▁sep｜>";
inline constexpr std::string_view kDeepSeekType = "function";
inline constexpr std::string_view kMistralArguments = "[ARGS]";
inline constexpr std::string_view kFunctionOpen = "<function=";
inline constexpr std::string_view kFunctionEnd = "</function>";
inline constexpr std::string_view kParameterOpen = "<parameter=";
inline constexpr std::string_view kParameterEnd = "</parameter>";

}  // namespace millrace::text
