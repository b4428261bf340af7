#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <queue>
#include <span>
#include <vector>

#include "base/token_mask.h"
#include "grammar/adaptive_masks.h"
#include "grammar/lazy_dfa.h"
#include "grammar/vocabulary.h"
#include "grammar/work_budget.h"

namespace millrace::grammar {

/// Computes the token mask of one DFA state: first what the adaptive masks of its frames say, then the tokens that have
/// to be followed byte by byte. It may stop anywhere and go on later, also over another DFA of the same automaton. Its
/// grammar's mutex guards it.
class MaskWalk {
 public:
  MaskWalk(const Automaton& automaton, const Vocabulary& vocabulary);

  /// Returns whether the mask is finished. Else the budget has ended, or the DFA is full. `state` is the same in every
  /// call, as `dfa` knows it.
  [[nodiscard]] bool run(const std::shared_ptr<LazyDfa>& dfa, LazyDfa::DfaState state, AdaptiveMasks& adaptive,
                         WorkBudget& budget);
  /// Returns the mask after run() has returned true.
  [[nodiscard]] const TokenMask& mask() const { return mask_; }
  /// Returns whether the mask took long, so that it should be kept.
  [[nodiscard]] bool took_long() const { return steps_ > kManySteps; }

 private:
  using NodeRange = AdaptiveTokenMask::NodeRange;
  using AdaptivePtr = std::shared_ptr<const AdaptiveTokenMask>;
  static constexpr uint64_t kManySteps = 250;

  /// What a frame of the state says about its tokens.
  struct Source {
    StateId state;
    Automaton::RepeatPosition counted;
    uint32_t depth;
  };
  /// Ascending ranges whose tokens have to be followed.
  struct Unsure {
    AdaptivePtr owner;  // of the ranges, unless they are own
    std::vector<NodeRange> own;
    size_t next = 0;
    [[nodiscard]] std::span<const NodeRange> ranges() const {
      return owner != nullptr ? std::span<const NodeRange>(owner->context_dependent) : std::span<const NodeRange>(own);
    }
  };
  /// The removal of tokens that take more runs than a count leaves.
  struct Removal {
    AdaptivePtr tokens;
    TokenMask certain;
    uint32_t max_runs;
    uint32_t at = 0;  // the next node
    std::vector<NodeRange> removed;
  };

  // These functions return false if the budget ends first.
  /// Finds the sources, which are those of the state in every DFA.
  [[nodiscard]] bool find_sources(LazyDfa::DfaState state, WorkBudget& budget);
  [[nodiscard]] bool find_repeat_position(StackId stack, WorkBudget& budget);
  [[nodiscard]] bool read_sources(AdaptiveMasks& adaptive, WorkBudget& budget);
  /// Returns an adaptive mask; null if the budget ends first, or if the DFA is full.
  [[nodiscard]] AdaptivePtr adaptive_mask(AdaptiveMaskKey key, AdaptiveMasks& adaptive, WorkBudget& budget);
  void read(const Source& source, AdaptivePtr tokens, WorkBudget& budget);
  [[nodiscard]] bool finish_removal(WorkBudget& budget);
  void add_unsure(Unsure unsure);
  [[nodiscard]] bool follow_tokens(WorkBudget& budget);
  [[nodiscard]] bool follow_parent(WorkBudget& budget);
  [[nodiscard]] bool follow_node(WorkBudget& budget);
  /// Moves to the next range. Returns false at the end of all.
  [[nodiscard]] bool next_range();

  const Automaton& automaton_;
  const Vocabulary& vocabulary_;
  TokenMask mask_;
  uint64_t steps_ = 0;
  std::vector<Source> sources_;
  bool has_sources_ = false;
  size_t read_returns_ = 0;               // of the next source's stack
  Automaton::RepeatPosition position_{};  // of the next source, as far as they say
  std::optional<StackId> positioned_;     // the stack whose position it is
  size_t read_sources_ = 0;
  std::shared_ptr<AdaptiveMaskWalk> adaptive_walk_;  // that the next source waits for
  std::optional<Removal> removal_;
  std::vector<Unsure> unsure_;
  std::priority_queue<std::pair<uint32_t, uint32_t>> queue_;  // of unsure_: ~begin of the next range, index
  uint32_t at_ = 0;                                           // the next node to follow
  uint32_t range_end_ = 0;                                    // of the range that it is in
  bool has_jumped_ = false;                                   // to another range, so that path_ may not fit
  // These are states of the present DFA.
  std::shared_ptr<LazyDfa> dfa_;
  std::vector<LazyDfa::DfaState> path_;  // by length of the text
  uint32_t path_length_ = 0;             // up to which path_ is filled
  uint32_t path_node_ = 0;               // whose text path_ follows
};

}  // namespace millrace::grammar
