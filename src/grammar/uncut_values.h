#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/result.h"
#include "grammar/expression.h"

namespace millrace::grammar {

/// Builds strings without the tags at which a parser would end them. Where whole tags take too many states, strings
/// lack a part of the tags. Bounds the steps of all texts of one definition, and how many strings are found too long.
/// It lives as long as the definition is built.
class UncutValues {
 public:
  /// The tags have a part in common, and begin with a character of ASCII.
  explicit UncutValues(std::vector<std::string_view> tags);

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
  /// Returns the place of the strings of a length, which several schemas share. Null until the caller has made them.
  [[nodiscard]] ExpressionPtr& of_length(bool has_escapes, uint32_t min, std::optional<uint32_t> max) {
    return of_length_[{has_escapes, min, max}];
  }
  /// Forgets shared strings, whose rules the caller gives up.
  void forget_shared() { of_length_.clear(); }

 private:
  using Tags = std::vector<std::string_view>;

  [[nodiscard]] ExpressionPtr without(const Tags& tags, const Definition& source, Definition& target);

  const Tags tags_;
  const std::string_view common_part_;
  std::map<std::tuple<bool, uint32_t, std::optional<uint32_t>>, ExpressionPtr> of_length_;
  size_t edge_count_ = 0;          ///< of all texts
  size_t failure_count_ = 0;       ///< texts that took too many steps
  size_t json_failure_count_ = 0;  ///< strings in JSON that did
};

}  // namespace millrace::grammar
