#pragma once

#include <functional>
#include <string_view>

#include "base/result.h"
#include "grammar/expression.h"

namespace millrace::grammar {

/// How a pattern's characters appear in the text: as they are, or escaped as inside a JSON string.
using CharEncoder = std::function<ExpressionPtr(const CharSet&)>;

/// Reads a regular expression, in the syntax that Python, ECMAScript and PCRE have in common: literals, escapes,
/// classes,
/// groups, alternatives, quantifiers, `^` and `$` at the ends of the whole's alternatives. `\d`, `\w` and `\s` mean
/// ASCII,
/// `.` all but the line feed. Lazy quantifiers match what greedy ones match. kInvalidArgument, with the place: bad
/// syntax,
/// what no automaton can follow (references back, looking around), and what is not supported (word boundaries, flags,
/// properties of Unicode).
///
/// `is_search`: the text has to contain a match, as JSON schema's `pattern`; else it has to be one.
[[nodiscard]] Result<ExpressionPtr> parse_regex(std::string_view pattern, bool is_search, const CharEncoder& write);
/// Of a whole text as it is.
[[nodiscard]] Result<ExpressionPtr> parse_regex(std::string_view pattern);

}  // namespace millrace::grammar
