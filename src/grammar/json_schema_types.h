#pragma once

#include <string_view>

#include "base/result.h"

namespace millrace::grammar {

/// Checks every "type" of a JSON schema and of the schemas within it, referenced or not. Fails with kInvalidArgument
/// and the position for a type that no draft has. Leaves all else to parse_json_schema().
[[nodiscard]] Result<void> check_schema_types(std::string_view schema);

}  // namespace millrace::grammar
