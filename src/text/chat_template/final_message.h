#pragma once

#include <string>
#include <string_view>

#include "text/chat_template/jinja_value.h"

namespace millrace::text {

/// The place where the text of a conversation's last message ends in the rendered chat. A mark after that text finds
/// it: the text itself may be empty, may stand elsewhere too, and may be changed by the template.
class FinalMessage {
 public:
  /// The mark occurs nowhere in `input_json`, from which the messages are parsed.
  explicit FinalMessage(std::string_view input_json);

  /// Puts the mark after the text of the last of `messages`. Throws TemplateError where no message has a text.
  void mark(const jinja::Value& messages, jinja::Heap& heap);
  /// Marks the text without the space at its end, for a template that drops that space.
  void mark_stripped(const jinja::Value& messages, jinja::Heap& heap);

  /// Ends `rendered` where the marked text ends. Returns false where the template has dropped space at the text's end.
  /// Throws TemplateError where the template does not show the text.
  [[nodiscard]] bool cut(std::string& rendered) const;

 private:
  std::string mark_;
  std::string behind_;  // what follows the mark where the template keeps the text's last space
};

}  // namespace millrace::text
