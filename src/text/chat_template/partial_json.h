#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace millrace::text {

/// Closes a JSON object that ends too early, as where max_tokens cut it off: what is open is closed, and a member
/// without a value is dropped. Nothing where `text` is no beginning of an object; the result may still not be JSON.
[[nodiscard]] std::optional<std::string> complete_partial_json(std::string_view text);

}  // namespace millrace::text
