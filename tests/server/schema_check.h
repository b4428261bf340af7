#pragma once

#include <simdjson.h>

#include <string_view>

namespace millrace::test {

/// Returns whether `value` is valid under `schema`, whose "$ref"s point into `root`. Supports the keywords of JSON
/// Schema that our own documents use, and fails the test on any other.
[[nodiscard]] bool matches(simdjson::dom::element value, simdjson::dom::element schema, simdjson::dom::element root);

}  // namespace millrace::test
