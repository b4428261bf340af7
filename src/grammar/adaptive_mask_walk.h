#pragma once

#include <memory>
#include <vector>

#include "grammar/adaptive_mask.h"
#include "grammar/lazy_dfa.h"
#include "grammar/vocabulary.h"
#include "grammar/work_budget.h"

namespace millrace::grammar {

/// Computes one adaptive mask: it walks the vocabulary's tree once. It may stop at every node and go on later, also
/// over another DFA of the same automaton. Its grammar's mutex guards it.
class AdaptiveMaskWalk {
 public:
  AdaptiveMaskWalk(const Vocabulary& vocabulary, AdaptiveMaskKey key);

  [[nodiscard]] AdaptiveMaskKey key() const { return key_; }
  /// Returns whether the mask is finished. Else the budget has ended, or the DFA is full.
  [[nodiscard]] bool run(const std::shared_ptr<LazyDfa>& dfa, WorkBudget& budget);
  /// Returns the mask once, after run() has returned true.
  [[nodiscard]] AdaptiveTokenMask take();
  [[nodiscard]] bool is_taken() const { return is_taken_; }

 private:
  struct Step {
    LazyDfa::DfaState dfa_state = LazyDfa::kDeadState;
    bool has_ended = false;   // the rest may have begun at a text of at most this length, which is not empty
    uint32_t whole_runs = 0;  // that have ended
    uint32_t begun_runs = 0;
    uint32_t max_depth = 0;
  };

  /// Begins again over another DFA. Returns false if the budget ends first.
  [[nodiscard]] bool start_over(const std::shared_ptr<LazyDfa>& dfa, WorkBudget& budget);
  /// Fills path_ up to the parent of the node at at_. Returns false if the budget ends first.
  [[nodiscard]] bool follow_parent(WorkBudget& budget);
  [[nodiscard]] Step step_to(const Step& before, LazyDfa::DfaState dfa_state);
  void accept(const Step& step);
  /// Reads the node at at_, and moves on. Returns false if the budget ends first.
  [[nodiscard]] bool read_node(WorkBudget& budget);

  const Vocabulary& vocabulary_;
  const AdaptiveMaskKey key_;
  AdaptiveTokenMask mask_;
  uint32_t at_ = 0;  // the next node
  uint32_t max_depth_ = 0;
  bool is_taken_ = false;
  // These are states of the present DFA.
  std::shared_ptr<LazyDfa> dfa_;
  LazyDfa::DfaState run_end_ = LazyDfa::kDeadState;
  std::vector<Step> path_;    // by length of the text
  uint32_t path_length_ = 0;  // up to which path_ is filled
};

}  // namespace millrace::grammar
