#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// The formats in which models write tool calls, as rows of data that the parser and the grammars read.
namespace millrace::text {

/// A format of tool calls. docs/structured_output.md shows one call in each.
enum class ToolFormat : uint8_t {
  kHermes,
  kLlama3,
  kMistral,
  kMistralV11,
  kMistralV13,
  kDeepSeekV3,
  kDeepSeekV31,
  kDeepSeekV32,
  kDeepSeekV4,
  kDeepSeekV41,
  kQwen3Coder,
  kGlm45,
  kGlm47,
  kHunyuan3,
  kHunyuan3Preview,
  kKimiK2,
  kMiniMaxM2,
  kGemma4,
  kFunctionGemma,
  kPythonic,
  kLfm2,
  kPhi4Mini,
  kPhi4,
  kGranite,
  kNemotron,
  kCommand,
  kHarmony,
};
inline constexpr size_t kToolFormatCount = 27;

/// The notation of a call's arguments.
enum class ArgumentNotation : uint8_t {
  kJsonCall,    ///< name and arguments are members of one JSON object
  kJson,        ///< a JSON object
  kParameters,  ///< each parameter in tags, strings without quotes
  kLiterals,    ///< an object in a language of its own
};

/// The text around one parameter: `open` key `key_end` `value_open` value `value_end`.
struct ParameterTags {
  std::string_view open;
  std::string_view key_end;
  std::string_view value_open;
  std::string_view value_end;
  bool frames_lines = false;          ///< a line feed at either end of a value is markup
  bool has_string_attribute = false;  ///< the tag says whether the value is a string
};

/// A language of literals.
struct LiteralDialect {
  char open;               ///< begins the arguments
  char close;              ///< ends the arguments
  char key_end;            ///< follows the key of an argument
  std::string_view quote;  ///< stands at both ends of a string; empty: Python's quotes
  std::string_view separator = ", ";
  bool sorts_keys = false;     ///< members are in the order of their keys
  bool types_strings = false;  ///< a string may stand for a value of another type, as its schema says
  std::string_view true_word = "true";
  std::string_view false_word = "false";
  std::string_view null_word = "null";
};

/// Each ends a message of harmony.
inline constexpr std::array<std::string_view, 5> kHarmonyEnds = {"<|end|>", "<|call|>", "<|return|>", "<|start|>",
                                                                 "<|channel|>"};

/// The id that the model writes into a call.
enum class CallIdSyntax : uint8_t { kNone, kNumber, kNineCharacters };

/// The text of calls: `section_open list_open call separator call … list_close section_close`, where a call is
/// `call_open [id_open id] before_name name [id_open id] before_arguments arguments after_arguments call_close`. The
/// grammar writes exactly this, or a text without the line feed before its end. The parser also accepts other white
/// space, and calls whose section or end is missing.
struct ToolCallSyntax {
  std::string_view section_open = {};
  std::string_view list_open = {};
  std::string_view call_open = {};
  std::string_view before_name = {};
  std::string_view before_arguments = {};
  std::string_view after_arguments = {};
  std::string_view call_close = {};
  std::string_view separator = {};
  std::string_view list_close = {};
  std::string_view section_close = {};
  ArgumentNotation notation = ArgumentNotation::kJsonCall;
  const ParameterTags* tags = nullptr;
  const LiteralDialect* dialect = nullptr;
  std::span<const std::string_view> name_ends = {};  ///< a name ends before the first of these
  CallIdSyntax id = CallIdSyntax::kNone;
  std::string_view id_open = {};
  bool id_is_first = false;                     ///< the id precedes the name
  bool name_needs_before_name = false;          ///< a call begins with before_name or is none
  bool is_whole_output = false;                 ///< calls and text exclude each other
  bool allows_one_call = false;                 ///< an output ends with its first call
  std::span<const std::string_view> cuts = {};  ///< each ends the arguments, also within a string

  /// Returns whether the syntax has a way to write this name.
  [[nodiscard]] bool can_write(std::string_view name) const;
  [[nodiscard]] bool is_list() const { return !list_open.empty(); }
  /// Returns the name as the format writes it, with JSON escapes where it is a JSON string.
  [[nodiscard]] std::string escaped_name(std::string_view name) const;
  /// Returns what ends a value, also within a string and without the space around it. Of a parameter in tags the first
  /// is its own end.
  [[nodiscard]] std::vector<std::string_view> value_ends() const;
};

/// A format: `written` is what a grammar lets a model write, the usual syntax first. `read` is what the parser accepts,
/// with `also_read`, markers that it skips before and after calls.
struct ToolFormatRow {
  ToolFormat format;
  std::string_view name;  ///< of --tool-call-parser
  std::span<const ToolCallSyntax> written;
  std::span<const ToolCallSyntax> read;
  std::span<const std::string_view> also_read;
  bool ends_reasoning = false;  ///< a section of calls ends the reasoning, whose end the model may leave out
};

[[nodiscard]] const ToolFormatRow& row_of(ToolFormat format);
[[nodiscard]] std::string_view to_string(ToolFormat format);
/// Returns the name of each format.
[[nodiscard]] std::vector<std::string> tool_format_names();
/// Returns other names of formats, by which users of other servers know them.
[[nodiscard]] std::vector<std::string> tool_format_aliases();
[[nodiscard]] std::optional<ToolFormat> parse_tool_format(std::string_view word);
/// Returns the format that a chat template's source asks for, or nothing if it names none.
[[nodiscard]] std::optional<ToolFormat> detect_tool_format(std::string_view source);

/// Returns the marker that precedes calls and never occurs in other text. Empty if calls are the whole output.
[[nodiscard]] std::string_view tool_call_start_tag(ToolFormat format);
/// Returns whether the marker of a format contains a token of this spelling, special or not.
[[nodiscard]] bool is_tool_call_tag(std::string_view spelling);
/// Returns whether the arguments of calls are typed by the tools' schemas.
[[nodiscard]] bool needs_parameter_types(ToolFormat format);

/// Returns the beginning of an output that calls the tool `name`, up to its arguments, or up to the name if it is
/// empty. Leaves out the space or quotation mark that begins the model's next token.
[[nodiscard]] std::string tool_call_prefix(ToolFormat format, std::string_view name);

}  // namespace millrace::text
