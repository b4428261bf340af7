#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "grammar/automaton.h"

/// Private to the builder of automata: its rules and states, and what follows from them as a whole.
namespace millrace::grammar {

/// The rules and states of an automaton that is being built.
struct RuleNetwork {
  struct CallEdge {
    RuleIndex rule;
    StateId to;
  };
  struct State {
    Automaton::RepeatPosition counted;
    std::vector<Automaton::ByteEdge> bytes;
    std::vector<StateId> epsilons;
    std::vector<CallEdge> calls;
  };
  struct Rule {
    StateId begin;
    StateId end;
    std::string name;
  };

  std::vector<State> states;
  std::vector<Rule> rules;
};

/// Returns the states that reach the end of their rule, by empty edges alone unless `reads`. Searches backwards from
/// the ends. A call counts once the begin of its rule is found.
[[nodiscard]] std::vector<bool> states_reaching_end(const RuleNetwork& network, bool reads);
/// Refuses rules that may call themselves before they read a byte. `is_nullable` has the states that reach the end of
/// their rule by empty edges.
[[nodiscard]] Result<void> check_recursion(const RuleNetwork& network, const std::vector<bool>& is_nullable);

}  // namespace millrace::grammar
