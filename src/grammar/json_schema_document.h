#pragma once

#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/json_value.h"
#include "grammar/expression.h"
#include "grammar/json_equality.h"
#include "grammar/read_work.h"
#include "grammar/text_language.h"

namespace millrace::grammar {

/// A JSON schema's text, the targets of its references and the languages of its patterns. Functions throw an
/// ErrorException without a position. Lives while one schema is read.
class SchemaDocument {
 public:
  explicit SchemaDocument(JsonValue root);

  [[nodiscard]] JsonValue root() const { return root_; }
  /// Returns the count of the work of all who read the schema.
  [[nodiscard]] ReadWork& work() { return work_; }
  [[nodiscard]] ListedValues& listed_values() { return listed_values_; }
  /// Returns what identifies a schema. Small schemas that differ in their descriptions only are the same.
  [[nodiscard]] const void* identity_of(JsonValue schema);
  /// Returns whether a member of `schema` constrains instances. Drafts up to 7 ignore the other members where there is
  /// a "$ref".
  [[nodiscard]] bool is_effective(JsonObject schema, const JsonMember& member) const;
  /// Returns the schema that "$ref" names: a JSON pointer, an anchor, or the "$id" of a schema within this one.
  [[nodiscard]] JsonValue referred(std::string_view reference);
  /// Returns the schema that "$dynamicRef" or "$recursiveRef" names. Fails if it depends on how it is reached.
  [[nodiscard]] JsonValue dynamically_referred(std::string_view reference);
  /// Returns the strings in which a "pattern" matches, as an expression over characters. Null if only
  /// pattern_language() can express them.
  [[nodiscard]] ExpressionPtr pattern(std::string_view pattern);
  [[nodiscard]] const TextLanguage& pattern_language(std::string_view pattern);
  /// Returns the strings of a format that is enforced. With `is_bound` returns at least these.
  [[nodiscard]] const TextLanguage& format_language(std::string_view name, bool is_bound = false);

 private:
  [[nodiscard]] JsonValue find_referred(std::string_view reference);
  void find_names(JsonValue value, std::string_view base, uint32_t depth);

  const JsonValue root_;
  ReadWork work_;
  ListedValues listed_values_;
  std::unordered_map<std::string, JsonValue> referred_;
  bool ignores_beside_ref_ = false;
  std::unordered_map<const void*, const void*> identities_;
  std::unordered_map<std::string, const void*> by_text_;
  bool has_names_ = false;
  std::unordered_map<std::string, size_t> dynamic_anchors_;  // how many schemas have each; "" for "$recursiveAnchor"
  std::unordered_map<std::string, JsonValue> by_name_;
  std::map<std::string, TextLanguage, std::less<>> patterns_;
  std::map<std::pair<std::string, bool>, TextLanguage> formats_;
};

}  // namespace millrace::grammar
