#include "server/messages/conversation_builder.h"

#include "base/log.h"
#include "server/messages/attribution.h"
#include "server/openai/call_parts.h"

namespace millrace::server::messages {

using openai::bad_request;
using openai::ChatMessage;
using openai::FieldError;
using openai::Json;

namespace {

/// Reads the blocks of an array with `read`, which gets each of them.
template <class Read>
FieldError read_blocks(const std::string& path, Json content, Read read) {
  JsonArray blocks;
  if (!content.get(blocks)) return openai::wrong_type(path, content, "a string or an array of blocks");
  size_t index = 0;
  for (const Json item : blocks) {
    Block block;
    if (FieldError error = read_block(fmt::format("{}[{}]", path, index++), item, block)) return error;
    if (FieldError error = read(block)) return error;
  }
  return std::nullopt;
}

/// Reads a text that the system prompt may consist of, without what says nothing to the model.
FieldError read_system_text(const std::string& path, Json content, std::string& text) {
  if (content.is_string()) {
    if (FieldError error = openai::read_string(path, content, text)) return error;
    remove_attribution(text);
    return std::nullopt;
  }
  return read_blocks(path, content, [&text](const Block& block) -> FieldError {
    std::string part;
    if (block.type != "text") {
      return bad_request(block.path, "{}.type: '{}' is not supported, wanted text", block.path,
                         block.type.substr(0, 64));
    }
    if (FieldError error = read_member(block, "text", true, part)) return error;
    remove_attribution(part);
    append_text(text, part);
    return std::nullopt;
  });
}

}  // namespace

FieldError ConversationBuilder::add_system(const std::string& path, Json content) {
  std::string text;
  if (FieldError error = read_system_text(path, content, text)) return error;
  if (!text.empty()) append_text(message_of("system").content, text);
  return std::nullopt;
}

FieldError ConversationBuilder::add_message(const std::string& path, Json message) {
  JsonObject members;
  if (!message.get(members)) return openai::wrong_type(path, message, "an object");
  std::string role;
  if (FieldError error = openai::read_string(path + ".role", members["role"], role)) return error;
  const std::string content_path = path + ".content";
  if (role == "user") return add_user(content_path, members["content"]);
  if (role == "assistant") return add_assistant(content_path, members["content"]);
  if (role == "system") return add_system(content_path, members["content"]);
  return bad_request(path + ".role", "{}.role: found '{}', wanted user, assistant or system", path, role.substr(0, 64));
}

FieldError ConversationBuilder::add_user(const std::string& path, Json content) {
  std::string text;
  std::optional<openai::Medium> medium;
  if (content.is_string()) {
    if (FieldError error = openai::read_string(path, content, text)) return error;
    append_text(message_of("user").content, text);
    return std::nullopt;
  }
  bool has_results = false;
  const FieldError error = read_blocks(path, content, [&](const Block& block) -> FieldError {
    if (is_hosted_block(block.type)) return std::nullopt;
    if (block.type != "tool_result") return append_block_text(block, text, medium);
    has_results = true;
    return add_tool_result(block);
  });
  if (error) return error;
  // Results come first: they belong to the calls of the message before.
  if (text.empty() && has_results) return std::nullopt;
  ChatMessage& message = message_of("user");
  append_text(message.content, text);
  if (!message.medium) message.medium = std::move(medium);
  return std::nullopt;
}

FieldError ConversationBuilder::add_tool_result(const Block& block) {
  ChatMessage message;
  message.role = "tool";
  message.content_kind = ChatMessage::Content::kText;
  if (FieldError error = read_member(block, "tool_use_id", true, message.tool_call_id)) return error;
  const Json content = block.members["content"];
  const std::string path = block.path + ".content";
  if (content.is_string()) {
    if (FieldError error = openai::read_string(path, content, message.content)) return error;
  } else if (!content.is_missing() && !content.is_null()) {
    const FieldError error =
        read_blocks(path, content, [&](const Block& part) { return append_result_block(part, message); });
    if (error) return error;
  }
  bool is_error = false;
  const Json flag = block.members["is_error"];
  if (!flag.is_missing() && !flag.is_null()) {
    if (FieldError error = openai::read_bool(block.path + ".is_error", flag, is_error)) return error;
  }
  if (is_error) openai::mark_tool_error(message.content);
  conversation_.messages.push_back(std::move(message));
  return std::nullopt;
}

FieldError ConversationBuilder::append_result_block(const Block& block, ChatMessage& result) const {
  if (block.type != "tool_reference") return append_block_text(block, result.content, result.medium);
  std::string name;
  if (FieldError error = read_member(block, "tool_name", true, name)) return error;
  append_text(result.content, tools_.referenced_text(name));
  return std::nullopt;
}

FieldError ConversationBuilder::add_assistant(const std::string& path, Json content) {
  ChatMessage& message = message_of("assistant");
  std::string text;
  if (content.is_string()) {
    if (FieldError error = openai::read_string(path, content, text)) return error;
    append_text(message.content, text);
    return std::nullopt;
  }
  const FieldError error = read_blocks(path, content, [&](const Block& block) -> FieldError {
    if (block.type == "tool_use") {
      return openai::read_tool_use(block.path, block.members, message.tool_calls.emplace_back());
    }
    if (block.type == "thinking") {
      std::string thinking;
      if (FieldError failure = read_member(block, "thinking", true, thinking)) return failure;
      append_text(message.reasoning, thinking);
      return std::nullopt;
    }
    if (block.type == "compaction") return append_compaction(block, text);
    if (block.type == "redacted_thinking" || is_hosted_block(block.type)) return std::nullopt;
    if (!is_known_block(block.type)) {
      // A refusal would end the session, since each of its requests has the block again.
      log::debug("{} is left out: blocks of type {} are unknown", block.path, block.type.substr(0, 64));
      return std::nullopt;
    }
    return append_block_text(block, text, message.medium);
  });
  append_text(message.content, text);
  return error;
}

FieldError ConversationBuilder::finish() {
  const auto& messages = conversation_.messages;
  if (messages.empty() || messages.back().role != "assistant") return std::nullopt;
  if (!messages.back().tool_calls.empty()) {
    return bad_request("messages",
                       "messages: the last one calls a tool, and the result is missing: wanted a user "
                       "message with a tool_result");
  }
  conversation_.continue_final_message = true;
  conversation_.add_generation_prompt = false;
  return std::nullopt;
}

ChatMessage& ConversationBuilder::message_of(std::string_view role) {
  auto& messages = conversation_.messages;
  if (messages.empty() || messages.back().role != role) {
    messages.emplace_back().role = role;
    messages.back().content_kind = ChatMessage::Content::kText;
  }
  return messages.back();
}

}  // namespace millrace::server::messages
