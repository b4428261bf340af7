#pragma once

#include "text/chat_template/message_shapes.h"

namespace millrace::text {

/// The roles of which one chat template takes two messages in a row. A value, found once per template by rendering
/// small conversations.
class RoleTurns {
 public:
  [[nodiscard]] static RoleTurns probe(const MessageShapes::Render& render);

  /// Joins the texts of neighbouring messages of one role where the template fails at the second one or drops a text. A
  /// blank line stands between them. Messages of the user that hold more than a text stay apart.
  /// Puts an empty message where the template fails without one: of the user before an assistant that begins, and of
  /// the assistant between calls or their results and the user.
  void adapt(const jinja::Value& messages, jinja::Heap& heap) const;

 private:
  bool joins_user_ = false;
  bool joins_assistant_ = false;
  bool needs_user_first_ = false;
  bool needs_answer_ = false;  ///< after calls and their results
};

}  // namespace millrace::text
