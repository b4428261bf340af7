#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "grammar/expression.h"

namespace millrace::grammar {

/// The members of an object, or the distinct items of an array: each at most once, separated by commas.
struct JsonSet {
  /// A way to write a member, and which of the wanted witnesses it is then: one bit each.
  struct Way {
    ExpressionPtr expression;
    uint32_t witnesses = 0;
  };
  struct Member {
    std::vector<Way> ways;
    bool is_required = false;
  };
  std::vector<Member> members;
  std::vector<Way> others;  ///< may come any number of times
  bool may_repeat = false;  ///< a member may come again if it takes too much to know that it has come
  uint32_t witnesses = 0;   ///< all of which have to come
  uint32_t min = 0;         ///< of all together
  std::optional<uint32_t> max;
};

/// Returns what stands between the brackets. `comma` and `end` are written between members, and after the last.
///
/// Members come in any order as far as `max_nodes` combinations allow it. Beyond that the optional ones may come again
/// if they may repeat, and else the rest comes in the order of the list.
[[nodiscard]] ExpressionPtr set_network(const JsonSet& set, const ExpressionPtr& comma, const ExpressionPtr& end,
                                        uint32_t max_nodes, Definition& definition);

/// Returns how many combinations set_network() distinguishes.
[[nodiscard]] size_t set_network_nodes(const JsonSet& set, uint32_t max_nodes);

}  // namespace millrace::grammar
