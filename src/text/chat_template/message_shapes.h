#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "text/chat_template/jinja_value.h"

namespace millrace::text {

/// How a message says that it has no content.
enum class NoContent : uint8_t { kEmpty, kNull, kAbsent };
inline constexpr size_t kNoContentKinds = 3;

/// What one chat template can render where requests differ: messages without content, and the arguments of earlier
/// calls. A value, found once per template by rendering small conversations.
class MessageShapes {
 public:
  /// The rendered text of a conversation in JSON, whose contents are arrays of parts where `as_parts`; nothing where
  /// the template fails.
  using Render = std::function<std::optional<std::string>(const std::string& messages_json, bool as_parts)>;
  /// Content is kept as it was sent wherever the template renders that without losing the message's calls and without
  /// printing the word None.
  [[nodiscard]] static MessageShapes probe(const Render& render);
  /// Returns the shapes of a template that takes messages without content in one form only.
  [[nodiscard]] MessageShapes with_no_content(NoContent form) const;

  /// Makes an array of one text part of every content that is a text.
  static void split_contents(const jinja::Value& messages, jinja::Heap& heap);
  /// Gives `messages` the shape that the template takes. Returns whether a message has no content.
  bool adapt(const jinja::Value& messages, jinja::Heap& heap) const;

 private:
  /// The messages that may come without content.
  enum class Sender : uint8_t { kAssistant, kCaller, kTool };
  static constexpr size_t kSenders = 3;
  using NoContentMap = std::array<NoContent, kNoContentKinds>;

  void probe_parts(const Render& render);
  [[nodiscard]] NoContentMap probe_content(const Render& render, Sender sender, NoContent caller_kind) const;
  void probe_arguments(const Render& render);
  void probe_responses(const Render& render);
  /// Moves the results of calls from messages of their own to the messages that call.
  static void move_responses(const jinja::Value& messages, jinja::Heap& heap);
  bool adapt_content(jinja::DictObject& message, jinja::Heap& heap) const;
  void adapt_calls(const jinja::DictObject& message, jinja::Heap& heap) const;
  [[nodiscard]] jinja::Value adapted_arguments(const jinja::Value* given, jinja::Heap& heap) const;

  /// The form to render for each sender and each form that was sent.
  std::array<NoContentMap, kSenders> content_{NoContentMap{NoContent::kEmpty, NoContent::kNull, NoContent::kAbsent},
                                              NoContentMap{NoContent::kEmpty, NoContent::kNull, NoContent::kAbsent},
                                              NoContentMap{NoContent::kEmpty, NoContent::kNull, NoContent::kAbsent}};
  /// The template joins arguments to a text itself instead of writing an object out as JSON.
  bool arguments_as_text_ = false;
  /// The template shows arguments that are a text, and no JSON.
  bool shows_any_text_ = true;
  /// The template shows results as the member "tool_responses" of the calling message, and otherwise unlike it.
  bool responses_in_call_ = false;
  /// The template loops over a content's parts, and shows no text.
  bool content_as_parts_ = false;
};

}  // namespace millrace::text
