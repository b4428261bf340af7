#include "grammar/lazy_dfa.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "base/check.h"
#include "base/hash.h"

namespace millrace::grammar {
namespace {

constexpr uint32_t kUnknownState = UINT32_MAX;
/// More tokens than this part of the vocabulary are kept as a mask.
constexpr uint32_t kSparseFraction = 64;
/// Masks that took less to ask for are not kept.
constexpr size_t kMinRangesToCacheMask = 16;
/// Frames visited for one question, up to a microsecond each: a grammar that takes more can be matched in too many
/// ways.
constexpr uint64_t kMaxWork = 200'000;

}  // namespace

LazyDfa::LazyDfa(const Grammar& grammar)
    : grammar_(grammar), automaton_(grammar.automaton()), vocabulary_(grammar.vocabulary()) {
  frames_.push_back({});
  seen_.push_back(0);
  path_.resize(vocabulary_.max_token_bytes() + 1);
  ++closure_;
  const DfaState dead_state = intern_state();
  CHECK(dead_state == kDeadState);
  visit(frame_of(automaton_.begin(), kStackBottom));
  begin_ = intern_state_unless_exhausted();
}

LazyDfa::Frame LazyDfa::frame_of(StateId state, Frame parent) {
  const auto [entry, is_new] =
      frame_index_.try_emplace(uint64_t{state} << 32 | parent, static_cast<Frame>(frames_.size()));
  if (is_new) {
    frames_.push_back({state, parent, frames_[parent].depth + 1});
    seen_.push_back(0);
  }
  return entry->second;
}

void LazyDfa::reset_work_budget() {
  work_ = 0;
  is_exhausted_ = false;
}

void LazyDfa::visit(Frame frame) {
  open_.push_back(frame);
  while (!open_.empty()) {
    const Frame at = open_.back();
    open_.pop_back();
    if (++work_ > kMaxWork) is_exhausted_ = true;
    if (is_exhausted_) continue;
    if (at == kStackBottom) {
      found_end_ = true;
      continue;
    }
    if (std::exchange(seen_[at], closure_) == closure_) continue;
    const FrameData data = frames_[at];
    if (automaton_.is_end(data.state)) {
      open_.push_back(data.parent);
      continue;
    }
    if (!automaton_.byte_edges_of(data.state).empty()) found_.push_back(at);
    for (const StateId to : automaton_.epsilons_of(data.state)) open_.push_back(frame_of(to, data.parent));
    if (data.depth >= kMaxDepth) continue;
    for (const Automaton::Call& call : automaton_.calls_of(data.state)) {
      // What comes back only to end there needs no frame of its own, so that repetition by recursion stays flat.
      const Frame back = automaton_.is_end(call.to) ? data.parent : frame_of(call.to, data.parent);
      open_.push_back(frame_of(call.begin, back));
    }
  }
}

LazyDfa::DfaState LazyDfa::intern_state() {
  ++closure_;
  std::ranges::sort(found_);
  std::string key(found_.size() * sizeof(Frame) + 1, found_end_ ? '\1' : '\0');
  if (!found_.empty()) std::memcpy(key.data() + 1, found_.data(), found_.size() * sizeof(Frame));
  const auto [entry, is_new] = dfa_state_index_.try_emplace(std::move(key), static_cast<DfaState>(dfa_states_.size()));
  if (is_new) {
    DfaStateData& data = dfa_states_.emplace_back();
    data.frames = found_;
    data.may_end = found_end_;
    cached_bytes_ += sizeof data + 2 * found_.size() * sizeof(Frame);
  }
  found_.clear();
  found_end_ = false;
  return entry->second;
}

LazyDfa::DfaState LazyDfa::transition(DfaState dfa_state, uint8_t byte) {
  DfaStateData& data = dfa_states_[dfa_state];
  if (data.transitions == nullptr) {
    data.transitions = std::make_unique<TransitionRow>();
    data.transitions->fill(kUnknownState);
    cached_bytes_ += sizeof(TransitionRow);
  }
  const DfaState known = (*data.transitions)[byte];
  if (known != kUnknownState) return known;
  const DfaState next = compute_transition(dfa_state, byte);  // moves dfa_states_
  if (!is_exhausted_) (*dfa_states_[dfa_state].transitions)[byte] = next;
  return next;
}

LazyDfa::DfaState LazyDfa::compute_transition(DfaState dfa_state, uint8_t byte) {
  for (const Frame frame : dfa_states_[dfa_state].frames) {
    const FrameData data = frames_[frame];
    for (const Automaton::ByteEdge& edge : automaton_.byte_edges_of(data.state)) {
      if (edge.low <= byte && byte <= edge.high) visit(frame_of(edge.to, data.parent));
    }
  }
  return intern_state_unless_exhausted();
}

LazyDfa::DfaState LazyDfa::intern_state_unless_exhausted() {
  if (!is_exhausted_) return intern_state();
  found_.clear();
  found_end_ = false;
  ++closure_;
  return kDeadState;
}

LazyDfa::DfaState LazyDfa::advance(DfaState dfa_state, std::string_view text) {
  const std::lock_guard lock(mutex_);
  reset_work_budget();
  for (const char c : text) {
    if (dfa_state == kDeadState) break;
    dfa_state = transition(dfa_state, static_cast<uint8_t>(c));
  }
  return dfa_state;
}

bool LazyDfa::may_end(DfaState dfa_state) {
  const std::lock_guard lock(mutex_);
  return dfa_states_[dfa_state].may_end;
}

bool LazyDfa::must_end(DfaState dfa_state) {
  const std::lock_guard lock(mutex_);
  return dfa_states_[dfa_state].may_end && dfa_states_[dfa_state].frames.empty();
}

size_t LazyDfa::bytes() const {
  const std::lock_guard lock(mutex_);
  constexpr size_t kFrameBytes = sizeof(FrameData) + 48;
  return cached_bytes_ + frames_.size() * kFrameBytes;
}

/// Calls accept(node) for the nodes of a range whose texts lead somewhere from `from`; what lies below others is
/// passed over.
template <class Accept>
void LazyDfa::walk(DfaState from, const AdaptiveTokenMask::NodeRange& range, const Accept& accept) {
  const size_t depth = vocabulary_.node(range.begin).length - 1;
  path_[depth] = from;
  for (uint32_t at = range.begin; at < range.end;) {
    const Vocabulary::Node& node = vocabulary_.node(at);
    const DfaState dfa_state = transition(path_[node.length - 1], node.byte);
    if (dfa_state == kDeadState) {
      at = node.end;
      continue;
    }
    path_[node.length] = dfa_state;
    accept(at);
    ++at;
  }
}

// With a loop, behind the state's rule comes the loop, and only behind that the unknown rest. Each run of the rule ends
// where the loop begins anew; a state where it may have ended, or gone on, cannot be counted.
AdaptiveTokenMask LazyDfa::compute_adaptive_mask(StateId state, StateId loop) {
  DfaState run_end = kDeadState;
  if (loop != 0) {
    visit(frame_of(loop, kStackBottom));
    run_end = intern_state();
  }
  found_.assign(1, frame_of(state, loop == 0 ? kStackBottom : frame_of(loop, kStackBottom)));
  const DfaState start = intern_state();
  AdaptiveTokenMask local;
  if (is_exhausted_) return local;
  struct Step {
    DfaState dfa_state = kDeadState;
    bool has_ended = false;  // at a text of at most this length, which is not empty
    uint32_t runs = 0;       // that have ended
  };
  std::vector<Step> path(vocabulary_.max_token_bytes() + 1);
  path[0].dfa_state = start;
  for (uint32_t at = 0; at < vocabulary_.node_count() && local.is_countable;) {
    const Vocabulary::Node& node = vocabulary_.node(at);
    const Step& before = path[node.length - 1];
    const DfaState dfa_state = transition(before.dfa_state, node.byte);
    if (dfa_state == kDeadState) {
      if (before.has_ended) local.context_dependent.push_back({at, node.end});
      at = node.end;
      continue;
    }
    const bool may_end = dfa_states_[dfa_state].may_end;
    path[node.length] = {dfa_state, before.has_ended || may_end, before.runs + (dfa_state == run_end ? 1 : 0)};
    local.is_countable = loop == 0 || may_end == (dfa_state == run_end);
    const uint32_t runs = path[node.length].runs + (dfa_state == run_end ? 0 : 1);
    for (const TokenId token : vocabulary_.tokens_of(at)) {
      local.accepted_ids.push_back(token);
      if (loop != 0 && runs > 1) local.multi_run.push_back({runs, token});
    }
    ++at;
    if (!dfa_states_[dfa_state].frames.empty()) continue;
    if (at < node.end) local.context_dependent.push_back({at, node.end});
    at = node.end;
  }
  std::ranges::sort(local.multi_run, std::greater(), &AdaptiveTokenMask::MultiRunToken::runs);
  if (local.accepted_ids.size() <= vocabulary_.size() / kSparseFraction) return local;
  TokenMask mask(vocabulary_.size());
  for (const TokenId token : local.accepted_ids) mask.add(token);
  local.accepted_mask = deduplicate(std::move(mask));
  local.accepted_ids = {};
  return local;
}

bool LazyDfa::precompute(StateId state, StateId loop) {
  const std::lock_guard lock(mutex_);
  reset_work_budget();
  (void)adaptive_mask(state, loop);
  return !is_exhausted_;
}

std::vector<StateId> LazyDfa::byte_states_from(StateId state) {
  const std::lock_guard lock(mutex_);
  reset_work_budget();
  visit(frame_of(state, kStackBottom));
  std::vector<StateId> readers;
  for (const Frame frame : dfa_states_[intern_state()].frames) readers.push_back(frames_[frame].state);
  return readers;
}

const AdaptiveTokenMask& LazyDfa::adaptive_mask(StateId state, StateId loop) {
  const uint64_t key = uint64_t{state} << 32 | loop;
  {
    const std::lock_guard lock(grammar_.mutex_);
    const auto known = grammar_.adaptive_masks_.find(key);
    if (known != grammar_.adaptive_masks_.end()) return *known->second;
  }
  auto computed = std::make_unique<const AdaptiveTokenMask>(compute_adaptive_mask(state, loop));
  if (is_exhausted_) {
    static const AdaptiveTokenMask kNothing;
    return kNothing;
  }
  const std::lock_guard lock(grammar_.mutex_);
  return *grammar_.adaptive_masks_.try_emplace(key, std::move(computed)).first->second;
}

std::shared_ptr<const TokenMask> LazyDfa::deduplicate(TokenMask mask) {
  const uint64_t hash = hash_bytes(std::as_bytes(mask.words()));
  const auto [first, last] = masks_.equal_range(hash);
  for (auto at = first; at != last; ++at) {
    if (*at->second == mask) return at->second;
  }
  cached_bytes_ += mask.words().size_bytes();
  return masks_.emplace(hash, std::make_shared<const TokenMask>(std::move(mask)))->second;
}

/// What may follow at one of a state's frames.
void LazyDfa::add_tokens(DfaState dfa_state, Frame frame, TokenMask& mask, bool& is_large) {
  const FrameData data = frames_[frame];
  Automaton::RepeatPosition counted = automaton_.repeat_position(frames_[data.parent].state);
  if (data.parent == kStackBottom || (counted.loop != 0 && !adaptive_mask(data.state, counted.loop).is_countable))
    counted = {};
  const AdaptiveTokenMask& tokens = adaptive_mask(data.state, counted.loop);
  is_large = is_large || tokens.accepted_mask != nullptr || tokens.context_dependent.size() > kMinRangesToCacheMask;
  const auto too_long = [&](const AdaptiveTokenMask::MultiRunToken& token) {
    return token.runs - 1 > counted.remaining;
  };
  if (tokens.multi_run.empty() || !too_long(tokens.multi_run.front())) {
    for (const TokenId token : tokens.accepted_ids) mask.add(token);
    if (tokens.accepted_mask != nullptr) mask.add(*tokens.accepted_mask);
  } else {
    TokenMask shorter = tokens.accepted_mask != nullptr ? *tokens.accepted_mask : TokenMask(vocabulary_.size());
    for (const TokenId token : tokens.accepted_ids) shorter.add(token);
    for (const AdaptiveTokenMask::MultiRunToken& token : tokens.multi_run) {
      if (!too_long(token)) break;
      shorter.remove(token.token);
    }
    mask.add(shorter);
  }
  for (const AdaptiveTokenMask::NodeRange& range : tokens.context_dependent) {
    const std::string_view text = vocabulary_.first_text(range.begin);
    DfaState from = dfa_state;
    for (const char c : text.substr(0, vocabulary_.node(range.begin).length - 1)) {
      from = transition(from, static_cast<uint8_t>(c));
    }
    if (is_exhausted_) return;
    if (from == kDeadState) continue;
    walk(from, range, [&](uint32_t at) {
      for (const TokenId token : vocabulary_.tokens_of(at)) mask.add(token);
    });
  }
}

std::shared_ptr<const TokenMask> LazyDfa::allowed(DfaState dfa_state, bool with_stop_tokens) {
  const std::lock_guard lock(mutex_);
  reset_work_budget();
  with_stop_tokens = with_stop_tokens && dfa_states_[dfa_state].may_end;
  if (dfa_states_[dfa_state].masks[with_stop_tokens] != nullptr) return dfa_states_[dfa_state].masks[with_stop_tokens];
  TokenMask mask(vocabulary_.size());
  bool is_large = false;
  const std::vector<Frame> frames = dfa_states_[dfa_state].frames;
  for (const Frame frame : frames) add_tokens(dfa_state, frame, mask, is_large);
  if (with_stop_tokens) {
    for (const TokenId token : grammar_.stop_token_ids()) mask.add(token);
  }
  if (is_exhausted_ || mask.empty()) return nullptr;
  if (!is_large) return std::make_shared<const TokenMask>(std::move(mask));
  auto kept = deduplicate(std::move(mask));
  dfa_states_[dfa_state].masks[with_stop_tokens] = kept;
  return kept;
}

}  // namespace millrace::grammar
