#pragma once

#include <string_view>

#include "base/result.h"
#include "grammar/expression.h"

namespace millrace::grammar {

/// Reads a grammar in the EBNF that llama.cpp calls GBNF and other servers take as well: lines `name ::= …` of literals
/// in quotes, classes of characters in brackets, `.`, names of rules, groups, alternatives by `|`, and `*`, `+`, `?`,
/// `{n}`, `{n,}`, `{n,m}` behind any of them; comments from `#`. Adds the rules to a Definition; the expression is the
/// rule
/// `root`. kInvalidArgument: bad syntax, with the place, or a rule that is missing or defined twice, by name.
[[nodiscard]] Result<ExpressionPtr> parse_ebnf(std::string_view text, Definition& definition);

}  // namespace millrace::grammar
