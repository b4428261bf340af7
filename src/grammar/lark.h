#pragma once

#include <string_view>

#include "base/result.h"
#include "grammar/expression.h"

namespace millrace::grammar {

/// Reads a grammar of Lark, the notation of OpenAI's custom tools. Adds the rules to the definition and returns the
/// rule `start`. The texts are those that some choice of tokens gives, also where a lexer of Lark would choose others.
///
/// Takes rules and terminals with priorities and aliases, literals, regular expressions, ranges, groups and `[…]`. The
/// quantifiers are `?`, `*`, `+`, `~n` and `~n..m`; the directives are `%ignore`, and `%import` of terminals of
/// `common`. Fails with kInvalidArgument and the position for bad syntax, templates, other imports, and assertions in
/// regular expressions. Fails also for rules within terminals, and for names that are missing or defined twice.
[[nodiscard]] Result<ExpressionPtr> parse_lark(std::string_view text, Definition& definition);

}  // namespace millrace::grammar
