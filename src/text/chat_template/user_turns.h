#pragma once

#include "text/chat_template/message_shapes.h"

namespace millrace::text {

/// Whether one chat template takes two messages of the user in a row. A value, found once per template by rendering
/// small conversations.
class UserTurns {
 public:
  [[nodiscard]] static UserTurns probe(const MessageShapes::Render& render);

  /// Joins the texts of neighbouring messages of the user, with a blank line between them, where the template fails at
  /// the second one or drops a text. Messages that hold more than a text stay apart.
  void adapt(const jinja::Value& messages, jinja::Heap& heap) const;

 private:
  bool are_joined_ = false;
};

}  // namespace millrace::text
