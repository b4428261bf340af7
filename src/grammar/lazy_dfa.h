#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/token_mask.h"
#include "grammar/grammar.h"

namespace millrace::grammar {

/// Says which tokens may follow a state of the automaton, whatever comes after the state's rule, and for which tokens
/// that matters. Dong et al. (XGrammar, MLSys 2025) describe the idea. The grammar owns it; it is immutable.
struct AdaptiveTokenMask {
  /// A range of the vocabulary's nodes: subtrees of one parent.
  struct NodeRange {
    uint32_t begin;
    uint32_t end;
  };
  static constexpr uint8_t kMaxRuns = UINT8_MAX;

  std::vector<TokenId> accepted_ids;               ///< legal in every context, unless they are in the mask
  std::shared_ptr<const TokenMask> accepted_mask;  ///< legal in every context; null if they are few
  std::vector<NodeRange> context_dependent;        ///< legal or not by what follows the rule
  /// Runs of a counted rule that the text of each node takes, up to kMaxRuns. Empty without a loop, or if none takes
  /// two.
  std::vector<uint8_t> runs;
  uint32_t max_runs = 0;     ///< of all nodes; not limited by kMaxRuns
  bool is_countable = true;  ///< false: the rule's runs cannot be counted, and the rest means nothing
  uint32_t extra_depth = 0;  ///< frames that the stacks grew by, at most
};

/// The grammar's automaton, made deterministic as far as outputs have come. A DFA state is the set of stacks of
/// automaton states that the text may have led to. Shared by all matchers that began with it; thread-safe.
class LazyDfa {
 public:
  using DfaState = uint32_t;
  /// The state in which nothing matches.
  static constexpr DfaState kDeadState = 0;
  static constexpr uint32_t kMaxDepth = 500;

  explicit LazyDfa(const Grammar& grammar);

  [[nodiscard]] DfaState begin() const { return begin_; }
  /// Returns the state after `text`. kDeadState if the text does not match, or if the work budget ends.
  [[nodiscard]] DfaState advance(DfaState dfa_state, std::string_view text);
  /// Returns the token mask of a state. Null if no token may follow, or if the work budget ends.
  [[nodiscard]] std::shared_ptr<const TokenMask> allowed(DfaState dfa_state, bool with_stop_tokens);
  [[nodiscard]] bool may_end(DfaState dfa_state);
  [[nodiscard]] bool must_end(DfaState dfa_state);
  /// Returns the approximate memory use.
  [[nodiscard]] size_t bytes() const;
  /// Computes the adaptive mask of `state` ahead of use. With a loop, computes the one for runs of a counted rule.
  /// Returns false if the work budget ends.
  [[nodiscard]] bool precompute(StateId state, StateId loop = 0);
  /// Returns the byte-reading states that `state` reaches without reading.
  [[nodiscard]] std::vector<StateId> byte_states_from(StateId state);

 private:
  using Frame = uint32_t;
  /// A state, and the frame to return to at the end of its rule.
  struct FrameData {
    StateId state;
    Frame parent;
    uint32_t depth;
  };
  /// The bottom of every stack. A text that reaches it is complete.
  static constexpr Frame kStackBottom = 0;
  using TransitionRow = std::array<DfaState, 256>;
  struct DfaStateData {
    std::vector<Frame> frames;  // whose states read bytes; ascending
    bool may_end = false;
    uint32_t max_depth = 0;  // of all frames that were visited for it
    std::unique_ptr<TransitionRow> transitions;
    std::shared_ptr<const TokenMask> masks[2];  // without, with the ends; kept if they took long
  };

  /// Starts a new work budget. Every public call does so first.
  void reset_work_budget();
  [[nodiscard]] DfaState transition(DfaState dfa_state, uint8_t byte);
  [[nodiscard]] DfaState compute_transition(DfaState dfa_state, uint8_t byte);
  [[nodiscard]] Frame frame_of(StateId state, Frame parent);
  void visit(Frame frame);
  /// Returns the state of the frames that visit() has found, and forgets them.
  [[nodiscard]] DfaState intern_state();
  [[nodiscard]] DfaState intern_state_unless_exhausted();
  void forget_found();
  [[nodiscard]] const AdaptiveTokenMask& adaptive_mask(StateId state, StateId loop);
  [[nodiscard]] AdaptiveTokenMask compute_adaptive_mask(StateId state, StateId loop);
  /// Adds the tokens that may follow at one frame of a state. Adds to `unsure_` those that have to be followed.
  void add_certain_tokens(Frame frame, TokenMask& mask, bool& is_large);
  /// Removes the tokens that take more runs than the count leaves. Adds them to `unsure_`.
  void remove_longer_tokens(const std::vector<uint8_t>& runs, uint32_t max_runs, TokenMask& mask);
  /// Follows the tokens of `unsure_` from a state. Adds those that lead somewhere.
  void add_followed_tokens(DfaState dfa_state, TokenMask& mask);
  [[nodiscard]] std::shared_ptr<const TokenMask> deduplicate(TokenMask mask);

  const Grammar& grammar_;
  const Automaton& automaton_;
  const Vocabulary& vocabulary_;
  mutable std::mutex mutex_;
  // The rest is guarded by mutex_.
  DfaState begin_ = kDeadState;
  std::vector<FrameData> frames_;
  std::unordered_map<uint64_t, Frame> frame_index_;  // by state and parent
  std::vector<DfaStateData> dfa_states_;
  std::unordered_map<std::string, DfaState> dfa_state_index_;  // by the bytes of frames and may_end
  std::unordered_multimap<uint64_t, std::shared_ptr<const TokenMask>> masks_;
  size_t cached_bytes_ = 0;
  // Of the closure that is being computed.
  std::vector<Frame> open_;
  std::vector<uint64_t> seen_;  // per frame: the closure that it was visited in
  uint64_t closure_ = 0;
  std::vector<Frame> found_;
  bool found_end_ = false;
  uint32_t found_depth_ = 0;
  std::vector<AdaptiveTokenMask::NodeRange> unsure_;  // of the mask that is being computed
  std::vector<DfaState> path_;                        // of a walk, by length
  uint64_t work_ = 0;                                 // frames visited for the present question
  bool is_exhausted_ = false;  // they were too many: what is found from now on is not true, and not kept
};

}  // namespace millrace::grammar
