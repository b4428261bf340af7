#pragma once

#include <string_view>

#include "grammar/expression.h"

namespace millrace::grammar {

/// Copies the rules of `source` that its root needs into `target`, restricted to the texts without `tag`. Returns the
/// root's expression. The first character of the tag occurs in it once, and the tag has at most 63 characters. Throws
/// an ErrorException if the result is too large.
[[nodiscard]] ExpressionPtr without_tag(const Definition& source, std::string_view tag, Definition& target);

}  // namespace millrace::grammar
