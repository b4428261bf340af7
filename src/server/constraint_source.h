#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "server/output_constraint.h"

namespace millrace::server {

/// Returns a constraint as a text (JSON), from which a ring in another process compiles its grammar.
[[nodiscard]] std::string encode_constraint(const OutputConstraint& constraint);
/// Reads such a text. Error: kData.
[[nodiscard]] Result<OutputConstraint> decode_constraint(std::string_view source);

}  // namespace millrace::server
