#pragma once

#include <vector>

#include "text/chat_template/message_shapes.h"

namespace millrace::text {

/// How much one chat template takes in a message with calls: several calls, and text with them. A value, found once per
/// template by rendering small conversations.
class CallTurns {
 public:
  [[nodiscard]] static CallTurns probe(const MessageShapes::Render& render);

  /// Divides messages that the template refuses or of which it loses calls: into one message per call, each followed
  /// by its result, and into text and calls.
  void adapt(const jinja::Value& messages, jinja::Heap& heap) const;

 private:
  /// Adds a message that has `calls`, and the results of these calls, as separate messages of one call.
  static void divide(const jinja::Value& message, const std::vector<jinja::Value>& results,
                     std::vector<jinja::Value>& divided, jinja::Heap& heap);

  bool takes_one_call_ = false;
  bool takes_no_text_ = false;
};

}  // namespace millrace::text
