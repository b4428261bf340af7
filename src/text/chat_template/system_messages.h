#pragma once

#include "text/chat_template/message_shapes.h"

namespace millrace::text {

/// The positions at which one chat template takes system messages. A value, found once per template by rendering small
/// conversations.
class SystemMessages {
 public:
  [[nodiscard]] static SystemMessages probe(const MessageShapes::Render& render);

  /// Moves the texts of system messages into the first message, as far as the template does not show them where they
  /// stand. A conversation that the template renders whole stays as it is.
  void adapt(const jinja::Value& messages, jinja::Heap& heap) const;

 private:
  bool at_start_only_ = false;  ///< the template fails at a later one, or drops it
  bool one_only_ = false;       ///< the template shows one of several at the start
};

}  // namespace millrace::text
