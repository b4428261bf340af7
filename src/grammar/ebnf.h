#pragma once

#include <string_view>

#include "base/result.h"
#include "grammar/expression.h"

namespace millrace::grammar {

/// Reads a grammar in llama.cpp's EBNF (GBNF): lines `name ::= …` and comments from `#`. A line holds quoted literals,
/// character classes, `.`, rule names, groups, alternatives with `|`, and the quantifiers `*`, `+`, `?`, `{n}`, `{n,}`,
/// `{n,m}`. Adds the rules to the definition and returns the rule `root`. Fails with kInvalidArgument for bad syntax,
/// with its position, and for a rule that is missing or defined twice.
[[nodiscard]] Result<ExpressionPtr> parse_ebnf(std::string_view text, Definition& definition);

}  // namespace millrace::grammar
