#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "text/chat_template/jinja_value.h"

namespace millrace::text::jinja {

/// JSON text to a value on `heap`. Throws TemplateError; `what` names the text in it.
[[nodiscard]] Value parse_json(std::string_view json, std::string_view what, Heap& heap);

/// The parameters of Python's json.dumps that templates use.
struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  ///< one level of it
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
/// Throws TemplateError for what json.dumps refuses.
[[nodiscard]] std::string dump_json(const Value& value, const JsonStyle& style);

}  // namespace millrace::text::jinja
