#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "grammar/expression.h"
#include "grammar/json_notation.h"

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
  JsonNotation notation;
};

/// Reads a JSON schema (drafts 4 to 2020-12, and OpenAPI) into a definition. Returns the expression of its instances.
/// docs/structured_output.md lists the keywords that are enforced, and which valid instances are not written.
///
/// Fails with kInvalidArgument and the position for malformed schemas, keywords that are not enforced, and schemas that
/// take more work than ReadWork allows. Ignores annotations, unknown names and other formats.
[[nodiscard]] Result<ExpressionPtr> parse_json_schema(std::string_view schema, Definition& definition,
                                                      const SchemaOptions& options = {});

/// Reads the schema of a call's arguments: of the objects that satisfy it, the outermost written as arguments are.
/// Fails as parse_json_schema() does.
[[nodiscard]] Result<ExpressionPtr> parse_argument_schema(std::string_view schema, Definition& definition,
                                                          const SchemaOptions& options);

/// A member of arguments that are written one by one, and the parts that its value consists of.
struct SchemaMember {
  std::optional<std::string> name;  ///< nothing: any of the names that `key` has
  RuleIndex rule = 0;               ///< stands where the member may be written; the caller defines it
  ExpressionPtr key;                ///< the characters of the name
  bool is_any_text = false;         ///< strings have no conditions, or such as take too many states
  ExpressionPtr text;               ///< the characters of strings with conditions; null if there are none
  ExpressionPtr json;               ///< JSON of the other values; null if there are none
};

/// How arguments are written one by one.
struct MemberSyntax {
  std::string key_pattern;  ///< a regular expression of the names that the schema does not list
  /// Returns whether the strings of a member stand without quotes. Else they are JSON.
  std::function<bool(const std::optional<std::string>& name)> has_texts;
};

/// Reads the schema of arguments that are written one by one. Returns them one after another, with nothing between and
/// around them, and appends each to `members`. Fails as parse_json_schema() does.
[[nodiscard]] Result<ExpressionPtr> parse_member_schema(std::string_view schema, Definition& definition,
                                                        const SchemaOptions& options, const MemberSyntax& syntax,
                                                        std::vector<SchemaMember>& members);

/// Returns the expression of any JSON object.
[[nodiscard]] ExpressionPtr any_json_object(Definition& definition, const JsonNotation& notation = {});

}  // namespace millrace::grammar
