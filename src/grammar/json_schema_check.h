#pragma once

#include "base/json_value.h"
#include "grammar/json_schema_document.h"

namespace millrace::grammar {

/// Decides whether values satisfy schemas of a document. Counts its work in that of the document. Lives while the
/// document is read.
class SchemaCheck {
 public:
  explicit SchemaCheck(SchemaDocument& document) : document_(document) {}

  /// Throws an ErrorException, without a position, for a schema that is malformed or a keyword that cannot be checked.
  [[nodiscard]] bool is_valid(JsonValue value, JsonValue schema);
  /// Checks the name of a member. Throws as is_valid() does.
  [[nodiscard]] bool is_valid_name(std::string_view name, JsonValue schema);

 private:
  [[nodiscard]] bool satisfies(JsonValue value, JsonObject schema, const JsonMember& keyword);
  [[nodiscard]] bool satisfies_object(JsonValue whole, JsonObject schema, const JsonMember& keyword);
  [[nodiscard]] bool satisfies_member(const JsonMember& member, JsonObject schema);
  [[nodiscard]] bool satisfies_dependency(JsonObject value, JsonValue whole, const JsonMember& dependency);
  [[nodiscard]] bool satisfies_array(JsonArray value, JsonObject schema, const JsonMember& keyword);
  [[nodiscard]] bool satisfies_string(std::string_view value, const JsonMember& keyword);
  [[nodiscard]] bool satisfies_number(JsonValue value, JsonObject schema, const JsonMember& keyword);
  [[nodiscard]] size_t count_valid(JsonValue value, JsonValue schemas);

  SchemaDocument& document_;
  uint32_t depth_ = 0;
};

}  // namespace millrace::grammar
