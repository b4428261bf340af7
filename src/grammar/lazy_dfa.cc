#include "grammar/lazy_dfa.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/hash.h"

namespace millrace::grammar {
namespace {

constexpr LazyDfa::DfaState kUnknownState = UINT32_MAX;

}  // namespace

LazyDfa::LazyDfa(const Automaton& automaton, size_t max_bytes)
    : automaton_(automaton), max_bytes_(max_bytes), closure_(automaton, stacks_) {
  const DfaState dead = intern({}, false, 0);
  CHECK(dead == kDeadState);
}

std::optional<LazyDfa::DfaState> LazyDfa::begin(WorkBudget& budget) {
  return closure_of({automaton_.begin(), CallStacks::kBottom}, budget);
}

LazyDfa::DfaState LazyDfa::state_of(FrameId frame) {
  return intern({&frame, 1}, false, stacks_.depth_of(stacks_.frame(frame).stack) + 1);
}

std::optional<LazyDfa::DfaState> LazyDfa::closure_of(Frame frame, WorkBudget& budget) {
  const FrameId id = stacks_.frame_of(frame);
  if (const auto known = closures_.find(id); known != closures_.end()) return known->second;
  if (!finish_pending(budget)) return std::nullopt;
  // What was pending may have been this closure.
  if (const auto known = closures_.find(id); known != closures_.end()) return known->second;
  closure_.clear();
  closure_.add(frame);
  pending_ = Pending{.frame = id};
  if (!finish_pending(budget)) return std::nullopt;
  return closures_.at(id);
}

LazyDfa::DfaState LazyDfa::adopt(const LazyDfa& from, DfaState state, std::span<const FrameId> frames) {
  const State& known = from.states_[state];
  return intern(frames, known.may_end, known.max_depth);
}

LazyDfa::DfaState LazyDfa::intern(std::span<const FrameId> frames, bool may_end, uint32_t max_depth) {
  const uint64_t hash = mix_bits(hash_bytes(std::as_bytes(frames)) + (may_end ? 1 : 0));
  const auto known = state_index_.find(hash, [&](DfaState state) {
    return states_[state].may_end == may_end && std::ranges::equal(states_[state].frames, frames);
  });
  const DfaState state = known.value_or(static_cast<DfaState>(states_.size()));
  if (!known) {
    cached_bytes_ += sizeof(State) + HashIndex<DfaState>::kBytesPerId + frames.size_bytes();
    State& added = states_.emplace_back();
    added.frames = ids_.copy_of(frames);
    added.may_end = may_end;
    state_index_.add(hash, state);
  }
  states_[state].max_depth = std::max(states_[state].max_depth, max_depth);
  return state;
}

LazyDfa::DfaState& LazyDfa::known_transition(DfaState from, uint32_t byte_class) {
  State& state = states_[from];
  if (state.transitions.empty()) {
    state.transitions = ids_.allocate(automaton_.byte_class_count());
    std::ranges::fill(state.transitions, kUnknownState);
    cached_bytes_ += state.transitions.size_bytes();
  }
  return state.transitions[byte_class];
}

std::optional<LazyDfa::DfaState> LazyDfa::transition(DfaState from, uint8_t byte, WorkBudget& budget) {
  if (from == kDeadState) return kDeadState;
  const uint32_t byte_class = automaton_.byte_class_of(byte);
  if (const DfaState known = known_transition(from, byte_class); known != kUnknownState) return known;
  if (!finish_pending(budget)) return std::nullopt;
  // What was pending may have been this transition.
  if (const DfaState known = known_transition(from, byte_class); known != kUnknownState) return known;
  closure_.clear();
  pending_ = Pending{.from = from, .byte_class = byte_class, .byte = byte};
  if (!finish_pending(budget)) return std::nullopt;
  return known_transition(from, byte_class);
}

bool LazyDfa::finish_pending(WorkBudget& budget) {
  if (!pending_) return true;
  const std::span<const FrameId> frames = pending_->frame ? std::span<const FrameId>() : frames_of(pending_->from);
  while (pending_->read_frames < frames.size()) {
    if (budget.is_exhausted()) return false;
    const Frame frame = stacks_.frame(frames[pending_->read_frames++]);
    const auto edges = automaton_.byte_edges_of(frame.state);
    for (const Automaton::ByteEdge& edge : edges) {
      if (edge.low <= pending_->byte && pending_->byte <= edge.high) closure_.add({edge.to, frame.stack});
    }
    budget.spend(1 + edges.size() / 8);
  }
  if (!closure_.run(budget)) return false;
  const std::vector<FrameId> readers = closure_.take_readers();
  const DfaState next = intern(readers, closure_.found_text_end(), closure_.max_depth());
  budget.spend(1 + readers.size() / 8);
  if (pending_->frame) {
    closures_.emplace(*pending_->frame, next);
  } else {
    known_transition(pending_->from, pending_->byte_class) = next;
  }
  pending_.reset();
  return true;
}

std::shared_ptr<const TokenMask> LazyDfa::keep_mask(DfaState state, bool has_stop_tokens, TokenMask mask) {
  const uint64_t hash = hash_bytes(std::as_bytes(mask.words()));
  std::shared_ptr<const TokenMask>& kept = states_[state].masks[has_stop_tokens];
  const auto [first, last] = masks_.equal_range(hash);
  for (auto at = first; at != last; ++at) {
    if (*at->second == mask) return kept = at->second;
  }
  cached_bytes_ += mask.words().size_bytes();
  return kept = masks_.emplace(hash, std::make_shared<const TokenMask>(std::move(mask)))->second;
}

}  // namespace millrace::grammar
