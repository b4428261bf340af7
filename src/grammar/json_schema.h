#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.h"
#include "grammar/expression.h"

namespace millrace::grammar {

/// What becomes of a keyword that constrains instances and cannot be enforced.
enum class UnsupportedKeywords : uint8_t {
  kRefuse,  ///< parsing fails
  kIgnore,  ///< parsing goes on without the keyword, or with any value in place of its subschema
};

/// How a schema is read where the standard leaves room, or where instances of fewer kinds are wanted.
struct SchemaOptions {
  UnsupportedKeywords unsupported = UnsupportedKeywords::kRefuse;
  /// Excludes members that no schema declares, even if "additionalProperties" does not exclude them. Excludes types
  /// that no keyword of a schema without "type" is about.
  bool only_declared = false;
};

/// Reads a JSON schema (drafts 4 to 2020-12, and OpenAPI) into a definition. Returns the expression of its instances.
/// docs/structured_output.md lists the keywords that are enforced, and which valid instances are not written.
///
/// Fails with kInvalidArgument and the position for malformed schemas, keywords that are not enforced, and schemas that
/// take more work than ReadWork allows. Ignores
/// annotations, unknown names and other formats.
[[nodiscard]] Result<ExpressionPtr> parse_json_schema(std::string_view schema, Definition& definition,
                                                      const SchemaOptions& options = {});

/// Returns the expression of any JSON object.
[[nodiscard]] ExpressionPtr any_json_object(Definition& definition);

}  // namespace millrace::grammar
