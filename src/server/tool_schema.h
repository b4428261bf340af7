#pragma once

#include <string>
#include <string_view>

#include "base/json_value.h"

namespace millrace::server {

/// Returns whether the schema of an object requires a member.
[[nodiscard]] bool is_required(JsonValue schema, std::string_view key);

/// Returns the schema of a property together with the definitions that its references need, which `root` has.
[[nodiscard]] std::string with_definitions(JsonValue property, JsonValue root);

}  // namespace millrace::server
