#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::text {

/// The words of `reasoning_effort` that one chat template takes. A value, found once per template by rendering a small
/// conversation with each.
class EffortWords {
 public:
  /// Renders a conversation with a word. Returns nothing if the template fails.
  using Render = std::function<std::optional<std::string>(std::string_view effort)>;

  [[nodiscard]] static EffortWords probe(const Render& render);

  /// Returns the word to render in place of `effort`; empty for none. A template that refuses words it does not know
  /// gets the nearest one that it takes. One that prints any word gets low for none.
  [[nodiscard]] std::string_view word_for(std::string_view effort) const;

 private:
  bool prints_any_ = false;                             ///< a word becomes part of the prompt as it is
  std::optional<std::vector<std::string_view>> taken_;  ///< of a template that refuses other words
};

}  // namespace millrace::text
