#pragma once

#include <map>

#include "grammar/expression.h"

namespace millrace::grammar {

/// Returns an expression of `source` with references to rules of `target`. Copies the rules that it needs. `copies` has
/// the rules of `source` that have one in `target` already, and gets those that are copied.
[[nodiscard]] ExpressionPtr copy_rules(const Definition& source, const ExpressionPtr& expression, Definition& target,
                                       std::map<RuleIndex, RuleIndex>& copies);

}  // namespace millrace::grammar
