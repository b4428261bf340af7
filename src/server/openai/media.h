#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "server/openai/field.h"

/// Images, sounds, videos and files in a conversation. No model that is served reads them.
namespace millrace::server::openai {

/// Returns the word for what a content part of this type holds ("image"); empty if it holds no medium.
[[nodiscard]] std::string_view medium_of_type(std::string_view part_type);

/// Returns the text that the model reads in place of a medium, and records the first one of the message.
[[nodiscard]] std::string replace_medium(std::string_view word, std::string path, std::optional<Medium>& first);

/// Refuses a medium in a message that is neither the user's nor a tool's.
[[nodiscard]] FieldError check_medium(const ChatMessage& message);
/// Refuses media that the request asks about: those of the last messages, if they are the user's and answer no call.
/// Agents resend results of tools and earlier messages with each request, so media there become notes. Logs them.
[[nodiscard]] FieldError check_media(const Conversation& conversation);

}  // namespace millrace::server::openai
