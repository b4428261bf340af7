#pragma once

#include <cstdint>
#include <string_view>

#include "base/json_value.h"

/// The keywords of JSON Schema (drafts 4 to 2020-12) that constrain instances. Every other name is an annotation.
namespace millrace::grammar {

/// The type of instances that a keyword constrains.
enum class Constrained : uint8_t { kAny, kObject, kArray, kString, kNumber };

/// Returns whether `name` is a keyword for instances of one type, enforced or not.
[[nodiscard]] bool is_keyword_for(std::string_view name, Constrained type);

/// Returns whether `schema` has an enforced keyword for instances of one type.
[[nodiscard]] bool has_keyword_for(JsonObject schema, Constrained type);

/// Returns whether a member of `schema` constrains instances. A keyword does not if its value allows everything, or if
/// "type" excludes the instances that the keyword is about.
[[nodiscard]] bool is_constraint(JsonObject schema, const JsonMember& member);

/// Returns the first keyword of `schema` that constrains instances and is not enforced. Empty if there is none.
[[nodiscard]] std::string_view unenforced_keyword(JsonObject schema);

}  // namespace millrace::grammar
