#pragma once

#include <optional>
#include <string>

namespace millrace::text {

/// Returns a chat template for a model of Mistral whose repository has a tekken.json of this version and no template.
/// It renders text conversations as mistral_common encodes them. `thinks`: the vocabulary has [THINK] and [/THINK].
/// Nothing for versions other than 7, 11 and 13.
[[nodiscard]] std::optional<std::string> mistral_template(int tekken_version, bool thinks);

}  // namespace millrace::text
