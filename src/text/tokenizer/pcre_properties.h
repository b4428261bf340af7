#pragma once

#include <string_view>

#include "text/code_point_set.h"

namespace millrace::text {

/// Returns the characters that PCRE2's own tables give `item`, such as `\p{L}`; nullptr if PCRE2 does not know it. The
/// tables are asked once per item. Any thread.
[[nodiscard]] const CodePointSet* pcre_property_set(std::string_view item);

}  // namespace millrace::text
