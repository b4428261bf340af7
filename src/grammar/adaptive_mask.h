#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/token_mask.h"
#include "grammar/automaton.h"

namespace millrace::grammar {

/// Says which tokens may follow a state of the automaton, whatever comes after the state's rule, and for which tokens
/// that matters. Dong et al. (XGrammar, MLSys 2025) describe the idea. Owned by AdaptiveMasks; immutable.
struct AdaptiveTokenMask {
  /// A range of the vocabulary's nodes: subtrees of one parent.
  struct NodeRange {
    uint32_t begin;
    uint32_t end;
  };
  static constexpr uint8_t kMaxRuns = UINT8_MAX;

  std::vector<TokenId> accepted_ids;               ///< legal in every context, unless they are in the mask
  std::shared_ptr<const TokenMask> accepted_mask;  ///< legal in every context; null if they are few
  std::vector<NodeRange> context_dependent;        ///< legal or not by what follows the rule; ascending
  /// Runs of a counted rule that the text of each node takes, up to kMaxRuns. Empty without a loop, or if none takes
  /// two.
  std::vector<uint8_t> runs;
  uint32_t max_runs = 0;     ///< of all nodes; not limited by kMaxRuns
  bool is_countable = true;  ///< false: the rule's runs cannot be counted, and the rest means nothing
  uint32_t extra_depth = 0;  ///< calls that the stacks grew by, at most
};

/// A state whose adaptive mask is wanted. With a loop (not 0), the mask is for runs of a counted rule.
struct AdaptiveMaskKey {
  StateId state;
  StateId loop;
  friend bool operator==(const AdaptiveMaskKey&, const AdaptiveMaskKey&) = default;
};

}  // namespace millrace::grammar
