#pragma once

#include <compare>

#include "base/json_value.h"

/// Listed values ("enum", "const") beside other keywords of a schema.
namespace millrace::grammar {

/// Returns whether the value has a type of "type", a string or an array of strings. An integer may be written 1.0.
[[nodiscard]] bool has_type(JsonValue value, JsonValue types);

/// Compares whole numbers exactly, and others as doubles.
[[nodiscard]] std::partial_ordering compare_numbers(JsonValue left, JsonValue right);

/// Returns whether two values are equal; numbers by their size, the rest by their text.
[[nodiscard]] bool are_equal(JsonValue left, JsonValue right);

/// Returns whether a listed value satisfies one keyword of its schema. Throws an ErrorException without a position if
/// the keyword is about values of this type and cannot be checked.
[[nodiscard]] bool satisfies(JsonValue value, JsonObject schema, const JsonMember& keyword);

}  // namespace millrace::grammar
