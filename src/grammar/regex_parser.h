#pragma once

#include <functional>
#include <string_view>

#include "base/result.h"
#include "grammar/expression.h"

namespace millrace::grammar {

/// How characters appear in the text: plain, or escaped as in a JSON string.
using CharEncoder = std::function<ExpressionPtr(const CharSet&)>;

/// Reads a regular expression in the syntax that Python, ECMAScript and PCRE share. `^` and `$`, `\A` and `\z` may
/// stand at the ends of the outermost alternatives. `\d`, `\w` and `\s` mean ASCII; `\S` excludes the spaces of all
/// standards.
/// `.` is any character except the line feed. Lazy quantifiers match what greedy ones match. The flags `i`, for ASCII
/// letters, and `s` may stand at the begin of the pattern or of a group.
///
/// Fails with kInvalidArgument and the position for bad syntax, back references, lookaround, word boundaries, other
/// flags and Unicode properties. With `is_search` the text must contain a match, as for JSON schema's `pattern`.
[[nodiscard]] Result<ExpressionPtr> parse_regex(std::string_view pattern, bool is_search, const CharEncoder& write);
/// A search pattern over characters. Anchors within it are literals "^" and "$", which match at the ends of the text
/// only; all other characters are sets.
struct SearchPattern {
  ExpressionPtr expression;
  bool has_inner_anchors = false;
};
[[nodiscard]] Result<SearchPattern> parse_search_pattern(std::string_view pattern);
/// Reads a pattern that the whole text has to match, in plain text.
[[nodiscard]] Result<ExpressionPtr> parse_regex(std::string_view pattern);

}  // namespace millrace::grammar
