#pragma once

#include <string_view>

#include "base/result.h"
#include "grammar/expression.h"

namespace millrace::grammar {

/// Adds what a JSON schema (2020-12, and what earlier drafts and OpenAPI have in common with it) allows to a
/// Definition;
/// the expression is the schema's. Members of objects come in the order in which the schema lists them.
///
/// Held to: type (one or several), nullable, enum, const, anyOf, oneOf (as anyOf), allOf of one schema, $ref within the
/// schema, also of itself, properties, required, additionalProperties, items, prefixItems, minItems, maxItems,
/// minLength, maxLength,
/// pattern, the formats date, time, date-time, uuid, ipv4 and email, and bounds of numbers. Narrower than the
/// standard: an
/// object with `properties` has no others unless additionalProperties says so; a schema with keywords of one type
/// allows that type alone. kInvalidArgument, with the place: what is malformed, and keywords that are not held to;
/// annotations and other formats are passed over.
[[nodiscard]] Result<ExpressionPtr> parse_json_schema(std::string_view schema, Definition& definition);

/// Any JSON object, or any value.
[[nodiscard]] ExpressionPtr any_json_object(Definition& definition);

}  // namespace millrace::grammar
