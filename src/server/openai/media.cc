#include "server/openai/media.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/log.h"

namespace millrace::server::openai {
namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, 9> kMedia = {{{"image", "image"},
                                                                                  {"image_url", "image"},
                                                                                  {"input_image", "image"},
                                                                                  {"input_audio", "audio"},
                                                                                  {"audio_url", "audio"},
                                                                                  {"video_url", "video"},
                                                                                  {"file", "file"},
                                                                                  {"input_file", "file"},
                                                                                  {"document", "document"}}};

ApiError refuse(const Medium& medium) {
  const bool begins_with_vowel = medium.word == "image" || medium.word == "audio";
  return bad_request(medium.path, "{}: found {} {}, but this model reads text alone", medium.path,
                     begins_with_vowel ? "an" : "a", medium.word);
}

bool is_answered(const ChatMessage& message) {
  return message.role == "assistant" || message.role == "tool";
}

/// Returns the index of the first message that belongs to what the request asks.
size_t begin_of_question(const Conversation& conversation) {
  const auto& messages = conversation.messages;
  size_t begin = messages.size();
  // The beginning of the output comes after the question.
  if (conversation.continue_final_message && begin > 0) --begin;
  const size_t end = begin;
  while (begin > 0 && !is_answered(messages[begin - 1])) --begin;
  const bool follows_results = begin > 0 && messages[begin - 1].role == "tool";
  return follows_results ? end : begin;
}

}  // namespace

std::string_view medium_of_type(std::string_view part_type) {
  const auto* const found = std::ranges::find(kMedia, part_type, [](const auto& row) { return row.first; });
  return found == kMedia.end() ? std::string_view() : found->second;
}

std::string replace_medium(std::string_view word, std::string path, std::optional<Medium>& first) {
  if (!first) first = Medium{.word = std::string(word), .path = std::move(path)};
  return fmt::format("[{} left out: this model reads text only]", word);
}

FieldError check_medium(const ChatMessage& message) {
  if (!message.medium || message.role == "user" || message.role == "tool") return std::nullopt;
  return refuse(*message.medium);
}

FieldError check_media(const Conversation& conversation) {
  const auto& messages = conversation.messages;
  const size_t question = begin_of_question(conversation);
  const Medium* first = nullptr;
  size_t count = 0;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (!messages[i].medium) continue;
    const Medium& medium = *messages[i].medium;
    if (FieldError field_error = check_medium(messages[i])) return field_error;
    if (i >= question && messages[i].role == "user") return refuse(medium);
    if (first == nullptr) first = &medium;
    ++count;
  }
  if (first != nullptr) {
    log::debug("a request's prompt has notes in place of images or files: {} messages, the first is the {} in {}",
               count, first->word, first->path);
  }
  return std::nullopt;
}

}  // namespace millrace::server::openai
