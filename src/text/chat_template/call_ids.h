#pragma once

#include "text/chat_template/message_shapes.h"

namespace millrace::text {

/// The ids of calls that one chat template takes: Mistral's fail unless an id is nine letters and digits. A value,
/// found once per template by rendering small conversations.
class CallIds {
 public:
  [[nodiscard]] static CallIds probe(const MessageShapes::Render& render);

  /// Gives the calls of `messages` and their results ids that the template takes. Equal ids stay equal.
  void adapt(const jinja::Value& messages, jinja::Heap& heap) const;

 private:
  bool are_nine_bytes_ = false;
};

}  // namespace millrace::text
