#pragma once

#include <string_view>

#include "base/result.h"
#include "grammar/expression.h"

namespace millrace::grammar {

/// Reads a grammar of Lark, the notation of OpenAI's custom tools. Adds the rules to the definition and returns the
/// rule `start`. The texts are those that some choice of tokens gives, also where a lexer of Lark would choose others.
///
/// It takes rules and terminals with priorities and aliases, literals, regular expressions, ranges, groups, `[…]`, the
/// quantifiers `?`, `*`, `+`, `~n` and `~n..m`, `%ignore`, and `%import` of the terminals of `common`. Fails with
/// kInvalidArgument and the position for bad syntax, templates, other imports, assertions in regular expressions, rules
/// within terminals, and names that are missing or defined twice.
[[nodiscard]] Result<ExpressionPtr> parse_lark(std::string_view text, Definition& definition);

}  // namespace millrace::grammar
