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

LazyDfa::DfaState LazyDfa::begin() {
  if (!begin_) begin_ = closure_of({automaton_.begin(), CallStacks::kBottom});
  return *begin_;
}

LazyDfa::DfaState LazyDfa::state_of(FrameId frame) {
  return intern({frame}, false, stacks_.depth_of(stacks_.frame(frame).stack) + 1);
}

LazyDfa::DfaState LazyDfa::closure_of(Frame frame) {
  WorkBudget whole = WorkBudget::unlimited();
  (void)finish_pending(whole);
  closure_.clear();
  closure_.add(frame);
  (void)closure_.run(whole);
  return intern_closure();
}

LazyDfa::DfaState LazyDfa::import(const LazyDfa& from, DfaState state) {
  const State& known = from.states_[state];
  return intern(stacks_.import(from.stacks_, known.frames), known.may_end, known.max_depth);
}

LazyDfa::DfaState LazyDfa::intern(std::vector<FrameId> frames, bool may_end, uint32_t max_depth) {
  const uint64_t hash = mix_bits(hash_bytes(std::as_bytes(std::span(frames))) + (may_end ? 1 : 0));
  const auto known = state_index_.find(
      hash, [&](DfaState state) { return states_[state].may_end == may_end && states_[state].frames == frames; });
  const DfaState state = known.value_or(static_cast<DfaState>(states_.size()));
  if (!known) {
    cached_bytes_ += sizeof(State) + HashIndex<DfaState>::kBytesPerId + frames.size() * sizeof(FrameId);
    State& added = states_.emplace_back();
    added.frames = std::move(frames);
    added.may_end = may_end;
    state_index_.add(hash, state);
  }
  states_[state].max_depth = std::max(states_[state].max_depth, max_depth);
  return state;
}

LazyDfa::DfaState LazyDfa::intern_closure() {
  std::vector<FrameId> readers = closure_.take_readers();
  return intern(std::move(readers), closure_.found_text_end(), closure_.max_depth());
}

LazyDfa::DfaState& LazyDfa::known_transition(DfaState from, uint32_t byte_class) {
  State& state = states_[from];
  if (state.transitions == nullptr) {
    const size_t count = automaton_.byte_class_count();
    state.transitions = std::make_unique<DfaState[]>(count);
    std::fill_n(state.transitions.get(), count, kUnknownState);
    cached_bytes_ += count * sizeof(DfaState);
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
  pending_ = {.from = from, .byte_class = byte_class, .byte = byte};
  if (!finish_pending(budget)) return std::nullopt;
  return known_transition(from, byte_class);
}

bool LazyDfa::finish_pending(WorkBudget& budget) {
  if (!pending_) return true;
  const std::vector<FrameId>& frames = states_[pending_->from].frames;
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
  const DfaState next = intern_closure();
  budget.spend(states_[next].frames.size());
  known_transition(pending_->from, pending_->byte_class) = next;
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
