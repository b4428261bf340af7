#pragma once

#include <optional>
#include <string>

#include "text/tekken_format.h"

namespace millrace::text {

/// Returns a chat template for a model of Mistral whose repository has a tekken.json of this format and no template.
/// It renders text conversations as mistral_common encodes them. `thinks`: the vocabulary has [THINK] and [/THINK].
/// Nothing for versions other than 3, 7, 11, 13 and 15.
[[nodiscard]] std::optional<std::string> mistral_template(const TekkenFormat& format, bool thinks);

}  // namespace millrace::text
