#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/chat_template/jinja_value.h"

namespace millrace::text {

/// Returns other forms of a list of tools, for a template that fails at the list as it was sent. The first has a
/// description and parameters for each function, and no null. The second is a list of the functions themselves. Returns
/// none for what is no list of functions, or exceeds the heap.
[[nodiscard]] std::vector<std::string> other_tool_forms(std::string_view tools_json, jinja::Heap& heap);

/// Returns the tools with the members of all objects in the order of their names; what is no JSON as it is.
[[nodiscard]] std::string sorted_by_name(std::string_view tools_json, jinja::Heap& heap);

}  // namespace millrace::text
