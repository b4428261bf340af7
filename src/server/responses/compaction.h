#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "server/responses/request.h"

/// Conversations that a summary replaces: what asks the model for one, and how clients carry it to the next request.
namespace millrace::server::responses {

/// Turns `request` into one for a summary of its conversation. The prompt begins as that of the conversation does, and
/// the model may call nothing.
void ask_for_summary(ResponsesRequest& request);

/// Returns the encrypted_content of the item that carries `summary`. It is encoded, not encrypted.
[[nodiscard]] std::string seal_summary(std::string_view summary);
/// Returns what the model reads in place of an item with this encrypted_content; nothing if another server made it.
[[nodiscard]] std::optional<std::string> read_summary(std::string_view sealed);

}  // namespace millrace::server::responses
