#pragma once

#include <string>

#include "grammar/json_schema_case.h"

namespace millrace::grammar {

/// Adds a keyword about values of one type to a case. Returns false if nothing satisfies the result. Fails at `path`
/// for a malformed keyword, and for one that is not supported.
[[nodiscard]] bool add_type_keyword(CaseDraft& draft, JsonObject schema, const JsonMember& keyword,
                                    const std::string& path);

/// Adds `bound` of a number keyword, or its opposite. A flag next to the bound may exclude the bound itself.
void add_number_bound(CaseDraft& draft, JsonObject schema, const JsonMember& keyword, bool is_negated,
                      const std::string& path);

/// Returns the schemas of the items of a schema: by position, and for all others.
[[nodiscard]] ArrayConditions::Source item_source(JsonObject schema, const std::string& path);

/// Returns the divisor of a "multipleOf".
[[nodiscard]] Decimal divisor_of_keyword(JsonValue value, const std::string& path);

/// Returns the text of a keyword whose value is a string.
[[nodiscard]] std::string_view text_of_keyword(const JsonMember& keyword, const std::string& path);

/// Returns the names of an array, at most 2000.
[[nodiscard]] std::vector<std::string_view> names_of_keyword(const JsonMember& keyword, const std::string& path);

}  // namespace millrace::grammar
