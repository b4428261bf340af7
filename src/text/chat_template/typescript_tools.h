#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "text/chat_template/jinja_value.h"

namespace millrace::text {

/// Returns functions as declarations of TypeScript, which Kimi's tokenizer gives its template from K2.5 on as
/// `tools_ts_str`. `tools_json` is an array of tools whose members are sorted by name. Returns nothing where a schema
/// has no such form, and beyond the budget of the heap; the template then shows the tools as JSON.
[[nodiscard]] std::optional<std::string> typescript_of_tools(std::string_view tools_json, jinja::Heap& heap);

}  // namespace millrace::text
