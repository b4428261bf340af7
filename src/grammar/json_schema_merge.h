#pragma once

#include <string>

#include "base/json_value.h"
#include "base/result.h"

namespace millrace::grammar {

/// Returns the text of a schema whose instances are those of both schemas. Drops annotations. References keep their
/// text. Fails with kInvalidArgument, without a position, if one schema cannot express both.
[[nodiscard]] Result<std::string> merge_schemas(JsonObject left, JsonObject right);

/// Returns the text of a schema without one keyword and without annotations.
[[nodiscard]] std::string without_keyword(JsonObject schema, std::string_view keyword);

}  // namespace millrace::grammar
