#include "server/responses/compaction.h"

#include <fmt/format.h>

#include <span>

#include "base/base64.h"

namespace millrace::server::responses {
namespace {

constexpr std::string_view kSeal = "millrace1.";
constexpr std::string_view kRequest =
    "This conversation is about to be cut off, and someone else will go on with the work. Write all that they need to "
    "know: what the user wants, what has been decided and done, which files, names, commands and results matter, what "
    "failed, and what comes next. They will see the messages of the user and your text, and nothing else. Answer with "
    "that text only, and call no tool.";
constexpr std::string_view kHeading = "The earlier part of this conversation was cut off. This is a summary of it:";

}  // namespace

void ask_for_summary(ResponsesRequest& request) {
  openai::Conversation& conversation = request.conversation;
  openai::ChatMessage& message = conversation.messages.emplace_back();
  message.role = "user";
  message.content_kind = openai::ChatMessage::Content::kText;
  message.content = kRequest;
  conversation.continue_final_message = false;
  conversation.add_generation_prompt = true;
  // The tools stay in the prompt, so that the prefix cache has it.
  conversation.tools.clear();
  conversation.restricts_tools = true;
  if (conversation.forces_call()) conversation.tool_choice = openai::ToolChoice::kAuto;
  request.response_format.reset();
}

std::string seal_summary(std::string_view summary) {
  std::string sealed(kSeal);
  append_base64(sealed, std::as_bytes(std::span(summary)));
  return sealed;
}

std::optional<std::string> read_summary(std::string_view sealed) {
  if (!sealed.starts_with(kSeal)) return std::nullopt;
  const auto summary = decode_base64(sealed.substr(kSeal.size()));
  if (!summary) return std::nullopt;
  return fmt::format("{}\n\n{}", kHeading, *summary);
}

}  // namespace millrace::server::responses
