#include "grammar/json_schema_types.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/json_value.h"
#include "grammar/json_schema_case.h"

namespace millrace::grammar {
namespace {

/// Keywords with a schema, or with a list of schemas.
constexpr auto kOfSchemas = std::to_array<std::string_view>(
    {"items", "prefixItems", "additionalItems", "unevaluatedItems", "contains", "additionalProperties",
     "unevaluatedProperties", "propertyNames", "allOf", "anyOf", "oneOf", "not", "if", "then", "else"});
/// Keywords with named schemas.
constexpr auto kOfNamedSchemas = std::to_array<std::string_view>(
    {"properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions"});

struct Position {
  JsonValue schema;
  std::string path;
};

/// Adds the schemas within a keyword's value. What is no schema is left out.
void add_schemas(const JsonMember& keyword, const std::string& path, std::vector<Position>& open) {
  const std::string own = fmt::format("{}.{}", path, keyword.key);
  if (std::ranges::find(kOfNamedSchemas, keyword.key) != kOfNamedSchemas.end()) {
    JsonObject named;
    if (!keyword.value.get(named)) return;
    for (const auto& [name, schema] : named) open.push_back({schema, fmt::format("{}.{}", own, name)});
    return;
  }
  if (std::ranges::find(kOfSchemas, keyword.key) == kOfSchemas.end()) return;
  JsonArray list;
  if (!keyword.value.get(list)) return open.push_back({keyword.value, own});
  size_t index = 0;
  for (const JsonValue schema : list) open.push_back({schema, fmt::format("{}[{}]", own, index++)});
}

}  // namespace

Result<void> check_schema_types(std::string_view schema) {
  const auto document = JsonDocument::parse(schema);
  if (document.has_error()) return document.error();
  std::vector<Position> open = {{document->root(), "schema"}};
  try {
    while (!open.empty()) {
      const Position next = std::move(open.back());
      open.pop_back();
      JsonObject object;
      if (!next.schema.get(object)) continue;
      if (const JsonValue type = object["type"]; !type.is_missing()) (void)types_named(type, next.path);
      for (const JsonMember& keyword : object) add_schemas(keyword, next.path, open);
    }
  } catch (const ErrorException& failure) {
    return failure.error();
  }
  return {};
}

}  // namespace millrace::grammar
