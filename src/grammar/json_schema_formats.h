#pragma once

#include <string_view>

#include "grammar/expression.h"

namespace millrace::grammar {

/// Returns whether "format" with this name is enforced. Other names are annotations.
[[nodiscard]] bool is_enforced_format(std::string_view name);

/// Returns an expression that has every string of a format, and as few others as a small one can tell. Null for a
/// format that has none. format_expression() has a part of the strings of some formats.
[[nodiscard]] ExpressionPtr format_bound(std::string_view name);

/// Returns the strings of an enforced format as an expression over characters.
[[nodiscard]] ExpressionPtr format_expression(std::string_view name);

}  // namespace millrace::grammar
