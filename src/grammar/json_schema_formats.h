#pragma once

#include <string_view>

#include "grammar/expression.h"

namespace millrace::grammar {

/// Returns whether "format" with this name is enforced. Other names are annotations.
[[nodiscard]] bool is_enforced_format(std::string_view name);

/// Returns whether an enforced format has all the strings that its standard allows. Others have a part of them.
[[nodiscard]] bool is_exact_format(std::string_view name);

/// Returns the strings of an enforced format as an expression over characters.
[[nodiscard]] ExpressionPtr format_expression(std::string_view name);

}  // namespace millrace::grammar
