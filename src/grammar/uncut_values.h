#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "grammar/expression.h"

namespace millrace::grammar {

/// Builds strings without the tags at which a parser would end them. Where whole tags take too many states, strings
/// lack a part of the tags. Counts the steps of all strings of one definition, and lives as long as that is built.
class UncutValues {
 public:
  /// The tags have a part in common, and begin with a character of ASCII.
  explicit UncutValues(std::vector<std::string_view> tags);

  [[nodiscard]] const std::vector<std::string_view>& tags() const { return tags_; }
  [[nodiscard]] bool has_tag(std::string_view text) const;
  /// Returns JSON in which each tag begins with an escape.
  [[nodiscard]] std::string escaped(std::string json) const;

  /// Returns a text of `source` in `target`, or null if that takes too many states.
  [[nodiscard]] ExpressionPtr text(const Definition& source, Definition& target);
  /// Returns a JSON string of `source`, which can write any character as an escape. Null only if `source` alone takes
  /// too many states.
  [[nodiscard]] ExpressionPtr json(const Definition& source, Definition& target);
  /// Returns a text of `source` that may take many states. Fails beyond the limit of without_tags().
  [[nodiscard]] Result<ExpressionPtr> whole(const Definition& source, Definition& target) const;

 private:
  using Tags = std::vector<std::string_view>;

  [[nodiscard]] ExpressionPtr without(const Tags& tags, const Definition& source, Definition& target);

  const Tags tags_;
  const std::string_view common_part_;
  size_t edge_count_ = 0;     ///< of all strings
  size_t failure_count_ = 0;  ///< strings that took too many steps
};

}  // namespace millrace::grammar
