#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "grammar/expression.h"
#include "grammar/json_rules.h"
#include "grammar/json_schema_case.h"
#include "grammar/json_schema_cases.h"
#include "grammar/json_schema_document.h"

namespace millrace::grammar {

/// How the members of the outermost object are written where they differ from those of others.
struct MemberNotation {
  TextLanguage keys;        ///< of the members that no schema names
  ExpressionPtr separator;  ///< between members
  /// Returns a member of the name, or of any name that `key` has.
  std::function<ExpressionPtr(std::optional<std::string_view> name, ExpressionPtr key, std::vector<SchemaTerm>)> write;
};

/// What the readers of objects, arrays, strings and numbers share. Lives while one schema is read.
/// Functions fail at `path` for what has no position of its own.
struct SchemaParts {
  SchemaDocument& document;
  SchemaCases& cases;
  JsonRules& rules;
  Definition& definition;
  std::function<ExpressionPtr(std::vector<SchemaTerm>)> read;              ///< the values that satisfy all terms
  std::map<std::pair<std::string, TermKeys>, ExpressionPtr> members = {};  ///< by what identifies the names
  size_t nodes_left = 0;       ///< limits the combinations of members of all objects together
  bool only_declared = false;  ///< as in SchemaOptions
};

/// Returns the object, or its members alone in a notation of theirs.
[[nodiscard]] ExpressionPtr object_expression(const ObjectConditions& object, const std::string& path,
                                              SchemaParts& parts, const MemberNotation* notation = nullptr);
[[nodiscard]] ExpressionPtr array_expression(const ArrayConditions& array, SchemaParts& parts);
/// Returns the strings as `rules` write them, which may be others than those of `parts`. Null as
/// JsonRules::string_of().
[[nodiscard]] ExpressionPtr string_expression(const StringConditions& string, const std::string& path,
                                              SchemaParts& parts, JsonRules& rules);
[[nodiscard]] TextLanguage string_language(const StringConditions& string, const std::string& path, SchemaParts& parts);
/// `types` says whether numbers are whole or have a fraction.
[[nodiscard]] ExpressionPtr number_expression(NumberConditions number, TypeSet types, const std::string& path,
                                              SchemaParts& parts);

/// Returns the combinations that one object or array may distinguish. Counts what it takes.
[[nodiscard]] uint32_t take_set_nodes(const struct JsonSet& set, SchemaParts& parts);

}  // namespace millrace::grammar
