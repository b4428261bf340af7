#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "grammar/expression.h"

namespace millrace::grammar {

/// The members of an object, or the distinct items of an array: each at most once, separated by commas.
struct JsonSet {
  struct Member {
    ExpressionPtr expression;
    bool is_required = false;
  };
  std::vector<Member> members;
  std::vector<ExpressionPtr> others;  ///< may come any number of times
  uint32_t min = 0;                   ///< of all together
  std::optional<uint32_t> max;
};

/// Returns what stands between the brackets. Members come in any order as far as `max_nodes` combinations allow. The
/// order of the rest is that of the list. `comma` and `end` are written between members, and after the last.
[[nodiscard]] ExpressionPtr set_network(const JsonSet& set, const ExpressionPtr& comma, const ExpressionPtr& end,
                                        uint32_t max_nodes);

/// Returns how many combinations set_network() tells apart.
[[nodiscard]] size_t set_network_nodes(const JsonSet& set, uint32_t max_nodes);

}  // namespace millrace::grammar
