#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tool_calls/delimiter.h"
#include "text/tool_calls/parameter_types.h"

/// Values of the fields of a response template.
namespace millrace::text {

/// How a field's text becomes a value: its "content" and "content_args".
struct ResponseContent {
  enum class Kind : uint8_t { kText, kInteger, kFloat, kBoolean, kJson, kXmlInline, kKeyValueLines };
  Kind kind = Kind::kText;
  bool strips = true;
  std::vector<std::pair<std::string, std::string>> string_delimiters;  ///< of kJson: marks around strings
  bool has_unquoted_keys = false;
  bool allows_other_than_json = false;
  std::optional<Delimiter> tag_pattern;  ///< of kXmlInline
  bool merges_duplicates = false;
  std::string line_separator = "\n";  ///< of kKeyValueLines
  std::string key_separator = ":";
  std::shared_ptr<const ResponseContent> values;  ///< of the members of the last two; null: text
};

using Captures = std::map<std::string, std::string, std::less<>>;

/// Returns the value as JSON, or nothing if the text is none.
[[nodiscard]] std::optional<std::string> parse_response_content(const ResponseContent& content, std::string_view text);

/// Returns the JSON skeleton with a value in place of each string "{path}". The first part of a path is a capture,
/// "content", or a member of `element` (JSON, or empty). Nothing if a path leads nowhere.
[[nodiscard]] std::optional<std::string> transform_response(std::string_view skeleton, const Captures& captures,
                                                            std::string_view content, std::string_view element);

/// Returns the arguments, JSON of an object, with strings cast to the types that the tool's schema wants.
[[nodiscard]] std::string cast_arguments(const std::string& arguments, const std::string& tool,
                                         const ParameterTypes& types);

}  // namespace millrace::text
