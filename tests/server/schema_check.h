#pragma once

#include <simdjson.h>

#include <string_view>

namespace millrace::test {

/// True when `value` is what `schema` describes. Knows the words of JSON Schema that our own documents use, and fails
/// the test on any other; `root` is where "$ref" points into.
[[nodiscard]] bool matches(simdjson::dom::element value, simdjson::dom::element schema, simdjson::dom::element root);

}  // namespace millrace::test
