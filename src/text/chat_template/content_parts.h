#pragma once

#include <array>
#include <vector>

#include "text/chat_template/message_shapes.h"

namespace millrace::text {

/// The roles whose contents one chat template shows as several text parts. A value, found once per template by
/// rendering small conversations.
class ContentParts {
 public:
  /// A content of several parts, and the text that stands for it.
  struct Joined {
    jinja::Value parts;
    jinja::Value text;
  };

  [[nodiscard]] static ContentParts probe(const MessageShapes::Render& render);

  /// Replaces each content of parts by one text, in which a newline stands between the parts. Returns what it replaced.
  [[nodiscard]] static std::vector<Joined> join(const jinja::Value& messages, jinja::Heap& heap);
  /// Gives messages their parts back where the template shows them and where the text is still the message's content.
  void restore(const jinja::Value& messages, const std::vector<Joined>& joined, jinja::Heap& heap) const;

 private:
  static constexpr size_t kRoles = 4;

  std::array<bool, kRoles> shows_{};  ///< by role
};

}  // namespace millrace::text
