#pragma once

#include <optional>
#include <string_view>

namespace millrace::grammar {

/// Returns a terminal of Lark's library `common` as a regular expression, or nothing if the library has none of the
/// name.
[[nodiscard]] std::optional<std::string_view> lark_common_terminal(std::string_view name);

}  // namespace millrace::grammar
