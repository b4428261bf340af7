#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "server/openai/field.h"

/// Reads the blocks of a message that are text for the model.
namespace millrace::server::messages {

/// Appends `text` on a line of its own; an empty one adds nothing.
void append_text(std::string& out, std::string_view text);

/// One block of a message's content.
struct Block {
  std::string path;  ///< in the request, for messages
  std::string_view type;
  JsonObject members;
};

[[nodiscard]] openai::FieldError read_block(std::string path, openai::Json value, Block& block);
/// Reads a member that is a text. A missing one is an error where it `is_required`.
[[nodiscard]] openai::FieldError read_member(const Block& block, std::string_view name, bool is_required,
                                             std::string& out);

/// Appends the text of a `text`, `document` or `search_result` block, or the note for an `image` or another document;
/// `medium` gets the first of those. Other types are an error that names what is taken.
[[nodiscard]] openai::FieldError append_block_text(const Block& block, std::string& out,
                                                   std::optional<openai::Medium>& medium);
/// Appends the summary that stands for an earlier part of the conversation.
[[nodiscard]] openai::FieldError append_compaction(const Block& block, std::string& out);
/// Returns whether this server knows what a block of this type is.
[[nodiscard]] bool is_known_block(std::string_view type);
/// Returns whether a block records what a tool of Anthropic's own servers did. It is left out of the prompt.
[[nodiscard]] bool is_hosted_block(std::string_view type);

}  // namespace millrace::server::messages
