#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json_value.h"

namespace millrace::test {

/// Decides whether a value satisfies a JSON schema, keyword by keyword as draft 2020-12 defines them. Knows the
/// keywords that the tests write; patterns are single letters, optionally after '^'.
class SchemaOracle {
 public:
  explicit SchemaOracle(JsonValue root) : root_(root) {}
  [[nodiscard]] bool is_valid(JsonValue value, JsonValue schema) const;

 private:
  [[nodiscard]] bool satisfies(JsonValue value, JsonObject schema, std::string_view key, JsonValue wanted) const;
  [[nodiscard]] bool satisfies_object(JsonObject value, JsonObject schema, std::string_view key,
                                      JsonValue wanted) const;
  [[nodiscard]] bool satisfies_array(JsonArray value, JsonObject schema, std::string_view key, JsonValue wanted) const;
  JsonValue root_;
};

}  // namespace millrace::test
