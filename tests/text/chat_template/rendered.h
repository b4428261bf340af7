#pragma once

#include <catch2/catch.hpp>
#include <string>
#include <string_view>

#include "text/chat_template/chat_template.h"

namespace millrace::text {

/// Returns what a template makes of messages, or "error: " and why it cannot.
inline std::string rendered(const ChatTemplate& chat_template, std::string_view messages,
                            bool add_generation_prompt = false) {
  ChatInput input;
  input.messages_json = messages;
  input.add_generation_prompt = add_generation_prompt;
  const auto text = chat_template.render(input);
  return text.has_error() ? "error: " + text.error().message : *text;
}

inline std::string rendered(std::string_view source, std::string_view messages, bool add_generation_prompt = false) {
  const auto made = ChatTemplate::from_source(source);
  REQUIRE(made.has_value());
  return rendered(**made, messages, add_generation_prompt);
}

}  // namespace millrace::text
