#pragma once

#include "base/json_value.h"
#include "grammar/expression.h"
#include "grammar/json_rules.h"

namespace millrace::grammar {

/// Returns the expression of the numbers within the bounds of a schema. Throws an ErrorException without a position if
/// a bound is malformed or not supported, or if no integer is within the bounds.
[[nodiscard]] ExpressionPtr number_of_schema(JsonObject schema, bool is_integer, JsonRules& rules);

}  // namespace millrace::grammar
