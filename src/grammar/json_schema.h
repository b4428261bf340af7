#pragma once

#include <string_view>

#include "base/result.h"
#include "grammar/expression.h"

namespace millrace::grammar {

/// Reads a JSON schema (2020-12, and its common part with earlier drafts and OpenAPI) into a definition. Returns the
/// expression of its instances. Members of objects come in the order of the schema.
///
/// Enforces type, nullable, enum, const, anyOf, oneOf as anyOf, allOf of one schema, $ref within the schema,
/// properties, required, additionalProperties, items, prefixItems, minItems, maxItems, minLength, maxLength, pattern,
/// bounds of numbers, and the formats date, time, date-time, uuid, ipv4, email.
///
/// Narrower than the standard: an object with `properties` has no others unless additionalProperties allows them. A
/// schema with keywords of one type allows that type only. Fails with kInvalidArgument and the position for malformed
/// schemas and keywords that are not enforced. Ignores annotations and other formats.
[[nodiscard]] Result<ExpressionPtr> parse_json_schema(std::string_view schema, Definition& definition);

/// Returns the expression of any JSON object.
[[nodiscard]] ExpressionPtr any_json_object(Definition& definition);

}  // namespace millrace::grammar
