#pragma once

#include "text/chat_template/message_shapes.h"

namespace millrace::text {

/// The ids of calls that one chat template takes. Mistral's fail unless an id is nine letters and digits, or at least
/// as long. Kimi's show the id instead of the function's name, which the id has to hold. A value, found once per
/// template by rendering small conversations.
class CallIds {
 public:
  [[nodiscard]] static CallIds probe(const MessageShapes::Render& render);

  /// Gives the calls of `messages` and their results ids that the template takes. Equal ids stay equal.
  void adapt(const jinja::Value& messages, jinja::Heap& heap) const;

 private:
  void adapt_length(const jinja::Value& messages, jinja::Heap& heap) const;

  bool are_nine_bytes_ = false;
  bool are_nine_bytes_at_least_ = false;
  bool are_names_ = false;  ///< an id is functions.NAME:INDEX
};

}  // namespace millrace::text
