#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "grammar/json_schema_case.h"
#include "grammar/json_schema_document.h"

namespace millrace::grammar {

/// The ways in which a value may violate a schema.
struct Violations {
  std::vector<CaseWay> ways;
  std::string_view unwritable;  ///< a keyword that values may violate in ways which are left out; empty: none
};

/// Returns one way or several for each keyword of the schema. Fails at `path` for a malformed keyword.
[[nodiscard]] Violations violations_of(JsonObject schema, const std::string& path, SchemaDocument& document);

}  // namespace millrace::grammar
