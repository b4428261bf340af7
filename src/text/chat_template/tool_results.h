#pragma once

#include <cstddef>
#include <vector>

#include "text/chat_template/message_shapes.h"

namespace millrace::text {

/// How one chat template connects results with calls: by their order or by ids. It also says which ids and names the
/// template needs. A value, found once per template by rendering small conversations.
class ToolResults {
 public:
  [[nodiscard]] static ToolResults probe(const MessageShapes::Render& render);

  /// Puts the results of several calls in the order of the calls, where the template shows no ids. Gives calls and
  /// results the ids and names without which the template fails.
  void adapt(const jinja::Value& messages, jinja::Heap& heap) const;

 private:
  /// The results that follow a message with calls. Its messages are those from `begin` to `end`.
  struct Run {
    const std::vector<jinja::Value>& calls;
    size_t begin;
    size_t end;
  };

  void adapt_run(std::vector<jinja::Value>& messages, const Run& run, jinja::Heap& heap) const;
  void add_ids(const std::vector<jinja::Value>& calls, size_t& count, jinja::Heap& heap) const;

  bool are_in_order_ = false;  // no id of a result is shown
  bool needs_ids_ = false;
  bool needs_names_ = false;
};

}  // namespace millrace::text
