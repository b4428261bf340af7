#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "grammar/json_schema_case.h"
#include "grammar/json_schema_document.h"

namespace millrace::grammar {

/// Returns the conditions on the value of a member. Returns nothing if there may be no such member.
[[nodiscard]] std::optional<std::vector<SchemaTerm>> terms_of_member(const ObjectConditions& object,
                                                                     std::string_view name, SchemaDocument& document);

/// Members whose names no schema knows: those of one language share the conditions on their values.
struct MemberClass {
  TextLanguage names;
  std::vector<SchemaTerm> terms;
  bool is_declared = false;  ///< some schema says what these members are
};
/// Returns the classes of all names but `known`. Fails at the path of a source that has too many patterns.
[[nodiscard]] std::vector<MemberClass> other_members(const ObjectConditions& object,
                                                     const std::vector<std::string_view>& known,
                                                     const std::string& path, SchemaDocument& document);

/// Returns the schema that "$ref", "$dynamicRef" or "$recursiveRef" names.
[[nodiscard]] SchemaTerm referred_term(SchemaDocument& document, const JsonMember& keyword, bool is_negated,
                                       const std::string& path);

}  // namespace millrace::grammar
