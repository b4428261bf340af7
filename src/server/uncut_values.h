#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "grammar/expression.h"

namespace millrace::server {

/// Builds values without the tags at which the parser would end them. Where whole tags take too many states, values
/// lack a part of the tags. Lives as long as build_grammar runs.
class UncutValues {
 public:
  /// The tags have a part in common.
  UncutValues(std::vector<std::string_view> tags, grammar::Definition& definition);

  /// Returns a text of `source`, or nothing if it takes too many states.
  [[nodiscard]] grammar::ExpressionPtr text(grammar::Definition& source, const grammar::ExpressionPtr& text);
  /// Returns JSON of `source`. Its strings can write any character as an escape.
  [[nodiscard]] grammar::ExpressionPtr json(grammar::Definition& source, const grammar::ExpressionPtr& json);
  /// Returns the text of a whole definition. Fails if it takes too many states.
  [[nodiscard]] Result<grammar::ExpressionPtr> input(const grammar::Definition& source);

 private:
  using Tags = std::vector<std::string_view>;

  [[nodiscard]] grammar::ExpressionPtr without(const Tags& tags, grammar::Definition& source,
                                               const grammar::ExpressionPtr& value);

  const Tags tags_;
  const std::string_view common_part_;
  grammar::Definition& definition_;
  size_t edge_count_ = 0;     ///< of all values
  size_t failure_count_ = 0;  ///< values that took too many steps
};

}  // namespace millrace::server
