#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/token_mask.h"
#include "grammar/automaton.h"
#include "grammar/call_stacks.h"
#include "grammar/closure.h"
#include "grammar/hash_index.h"
#include "grammar/id_arena.h"
#include "grammar/work_budget.h"

namespace millrace::grammar {

/// The grammar's automaton, made deterministic as far as outputs have come. A DFA state is the set of frames that the
/// text may have led to. Shared by matchers; its grammar's mutex guards it. A full one is replaced by a new one, to
/// which each matcher moves its position.
class LazyDfa {
 public:
  using DfaState = uint32_t;
  /// The state in which nothing matches.
  static constexpr DfaState kDeadState = 0;

  LazyDfa(const Automaton& automaton, size_t max_bytes);

  // These three return nothing if the budget ends first. A later call continues, also for another state.
  /// Returns the state before any text.
  [[nodiscard]] std::optional<DfaState> begin(WorkBudget& budget);
  /// Returns the state after one more byte.
  [[nodiscard]] std::optional<DfaState> transition(DfaState from, uint8_t byte, WorkBudget& budget);
  /// Returns the state of all that a frame leads to without reading.
  [[nodiscard]] std::optional<DfaState> closure_of(Frame frame, WorkBudget& budget);
  /// Returns the state of one frame alone.
  [[nodiscard]] DfaState state_of(FrameId frame);
  /// Returns the same state as in another DFA of the automaton. `frames` are the state's frames here.
  [[nodiscard]] DfaState adopt(const LazyDfa& from, DfaState state, std::span<const FrameId> frames);

  /// Returns the state's frames, valid as long as the DFA.
  [[nodiscard]] std::span<const FrameId> frames_of(DfaState state) const { return states_[state].frames; }
  [[nodiscard]] bool may_end(DfaState state) const { return states_[state].may_end; }
  [[nodiscard]] bool must_end(DfaState state) const { return states_[state].may_end && states_[state].frames.empty(); }
  /// Returns at least the depth of every frame visited on the way to the state from the state before.
  [[nodiscard]] uint32_t max_depth_of(DfaState state) const { return states_[state].max_depth; }
  [[nodiscard]] CallStacks& stacks() { return stacks_; }
  [[nodiscard]] const CallStacks& stacks() const { return stacks_; }

  /// Returns the state's token mask if it was kept, else null.
  [[nodiscard]] std::shared_ptr<const TokenMask> mask_of(DfaState state, bool has_stop_tokens) const {
    return states_[state].masks[has_stop_tokens];
  }
  /// Keeps the mask of a state. Returns it, or an equal one that is kept already.
  std::shared_ptr<const TokenMask> keep_mask(DfaState state, bool has_stop_tokens, TokenMask mask);

  /// Returns the approximate memory use.
  [[nodiscard]] size_t bytes() const { return cached_bytes_ + stacks_.bytes(); }
  [[nodiscard]] bool is_full() const { return bytes() > max_bytes_; }

 private:
  struct State {
    std::span<const FrameId> frames;  // whose states read bytes; ascending
    bool may_end = false;
    uint32_t max_depth = 0;
    std::span<DfaState> transitions;            // [byte classes]; empty: none is known
    std::shared_ptr<const TokenMask> masks[2];  // without and with stop tokens
  };
  /// A transition, or a frame, whose closure is not finished. There is at most one.
  struct Pending {
    std::optional<FrameId> frame;  // without it a transition is pending
    DfaState from = kDeadState;
    uint32_t byte_class = 0;
    uint8_t byte = 0;
    size_t read_frames = 0;  // whose edges are in the closure
  };

  [[nodiscard]] DfaState intern(std::span<const FrameId> frames, bool may_end, uint32_t max_depth);
  [[nodiscard]] DfaState& known_transition(DfaState from, uint32_t byte_class);
  /// Returns false if the budget ends first.
  [[nodiscard]] bool finish_pending(WorkBudget& budget);

  const Automaton& automaton_;
  const size_t max_bytes_;
  CallStacks stacks_;
  Closure closure_;
  std::deque<State> states_;
  IdArena ids_;  // of the frames and transitions of states_
  HashIndex<DfaState> state_index_;
  std::unordered_map<FrameId, DfaState> closures_;  // of single frames
  std::optional<Pending> pending_;
  std::unordered_multimap<uint64_t, std::shared_ptr<const TokenMask>> masks_;
  size_t cached_bytes_ = 0;
};

}  // namespace millrace::grammar
