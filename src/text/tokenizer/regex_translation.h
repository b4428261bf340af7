#pragma once

#include <string>
#include <string_view>

#include "text/code_point_set.h"

namespace millrace::text {

/// Rewrites a pattern in Oniguruma's Ruby syntax, as Hugging Face's tokenizers takes it, to one that means the same to
/// PCRE2. Character classes become those of our tables, so nested brackets, intersections and characters that are newer
/// than PCRE2 work. Throws ErrorException (kData) for what neither can express.
[[nodiscard]] std::string translate_regex(std::string_view pattern);

/// Returns a bracket expression of PCRE2 that matches the characters of `set`.
[[nodiscard]] std::string bracket_expression(const CodePointSet& set);

}  // namespace millrace::text
