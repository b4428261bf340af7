#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "base/result.h"
#include "grammar/expression.h"

namespace millrace::grammar {

/// How characters appear in the text: plain, or escaped as in a JSON string.
using CharEncoder = std::function<ExpressionPtr(const CharSet&)>;

/// What a pattern may say of the text around a position, which a part of a larger text does not know.
enum class Anchoring : uint8_t { kAllowed, kRefused };

/// Reads a regular expression that the whole text has to match, in the syntax that Python, ECMAScript and PCRE share.
///
/// `^`, `$`, `\b` and `\B` may stand anywhere, `\A` and `\z` at the ends of the outermost alternatives. `\d`, `\w` and
/// `\s` mean ASCII; `\S` excludes the spaces of all standards. `\p{…}` and `\P{…}` are categories, scripts and some
/// other properties of Unicode. Boundaries next to letters beyond ASCII hold only where the standards agree. `.` is any
/// character except the line feed. Lazy quantifiers match what greedy ones match. The flags `i`, for ASCII letters, and
/// `s` may stand at the begin of the pattern or of a group.
///
/// Fails with kInvalidArgument and the position for bad syntax, back references, lookaround, other flags and unknown
/// properties. A pattern with assertions between its ends may take too many states.
[[nodiscard]] Result<ExpressionPtr> parse_regex(std::string_view pattern, Anchoring anchoring = Anchoring::kAllowed);

/// A pattern of which the text contains a match, as for JSON schema's `pattern`.
struct SearchPattern {
  ExpressionPtr expression;
  bool has_assertions = false;  ///< so that only a TextLanguage reads the expression
};
/// Reads such a pattern in the syntax of parse_regex().
[[nodiscard]] Result<SearchPattern> parse_search_pattern(std::string_view pattern);

}  // namespace millrace::grammar
