#include "grammar/lazy_dfa.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "base/check.h"
#include "base/hash.h"

namespace millrace::grammar {
namespace {

constexpr uint32_t kUnknownState = UINT32_MAX;
/// A larger part of the vocabulary is kept as a mask instead of a list.
constexpr uint32_t kSparseFraction = 64;
/// Masks that follow fewer ranges are not cached.
constexpr size_t kMinRangesToCacheMask = 16;
/// The work budget: frames visited per public call, up to a microsecond each. A grammar that needs more is too
/// ambiguous.
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
    found_depth_ = std::max(found_depth_, data.depth);
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
  uint32_t& max_depth = dfa_states_[entry->second].max_depth;
  max_depth = std::max(max_depth, found_depth_);
  forget_found();
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
  forget_found();
  ++closure_;
  return kDeadState;
}

void LazyDfa::forget_found() {
  found_.clear();
  found_end_ = false;
  found_depth_ = 0;
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

// The stack is the state's rule, then the loop if there is one, then the unknown rest. Each run of the rule ends where
// the loop begins anew. Runs cannot be counted where one may have ended or gone on.
AdaptiveTokenMask LazyDfa::compute_adaptive_mask(StateId state, StateId loop) {
  DfaState run_end = kDeadState;
  if (loop != 0) {
    visit(frame_of(loop, kStackBottom));
    run_end = intern_state();
  }
  const Frame first = frame_of(state, loop == 0 ? kStackBottom : frame_of(loop, kStackBottom));
  found_.assign(1, first);
  const DfaState start = intern_state();
  AdaptiveTokenMask local;
  if (is_exhausted_) return local;
  struct Step {
    DfaState dfa_state = kDeadState;
    bool has_ended = false;   // the rest may have begun at a text of at most this length, which is not empty
    uint32_t whole_runs = 0;  // that have ended
    uint32_t max_depth = 0;
  };
  std::vector<Step> path(vocabulary_.max_token_bytes() + 1);
  path[0] = {.dfa_state = start, .has_ended = false, .whole_runs = 0, .max_depth = frames_[first].depth};
  std::vector<uint8_t> runs(loop == 0 ? 0 : vocabulary_.node_count());
  uint32_t max_depth = 0;
  for (uint32_t at = 0; at < vocabulary_.node_count() && local.is_countable;) {
    const Vocabulary::Node& node = vocabulary_.node(at);
    const Step& before = path[node.length - 1];
    const DfaState dfa_state = transition(before.dfa_state, node.byte);
    if (dfa_state == kDeadState) {
      if (before.has_ended) local.context_dependent.push_back({at, node.end});
      at = node.end;
      continue;
    }
    const DfaStateData& data = dfa_states_[dfa_state];
    const bool ends_run = dfa_state == run_end;
    path[node.length] = {.dfa_state = dfa_state,
                         .has_ended = before.has_ended || data.may_end,
                         .whole_runs = before.whole_runs + (ends_run ? 1 : 0),
                         .max_depth = std::max(before.max_depth, data.max_depth)};
    max_depth = std::max(max_depth, path[node.length].max_depth);
    if (loop != 0) {
      local.is_countable = data.may_end == ends_run;
      const uint32_t begun_runs = path[node.length].whole_runs + (ends_run ? 0 : 1);
      local.max_runs = std::max(local.max_runs, begun_runs);
      runs[at] = static_cast<uint8_t>(std::min<uint32_t>(begun_runs, AdaptiveTokenMask::kMaxRuns));
    }
    const std::span<const TokenId> tokens = vocabulary_.tokens_of(at);
    local.accepted_ids.insert(local.accepted_ids.end(), tokens.begin(), tokens.end());
    ++at;
    if (!data.frames.empty()) continue;
    if (at < node.end) local.context_dependent.push_back({at, node.end});
    at = node.end;
  }
  local.extra_depth = std::max(max_depth, frames_[first].depth) - frames_[first].depth;
  if (local.max_runs > 1) local.runs = std::move(runs);
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

void LazyDfa::add_certain_tokens(Frame frame, TokenMask& mask, bool& is_large) {
  const FrameData data = frames_[frame];
  Automaton::RepeatPosition counted = automaton_.repeat_position(frames_[data.parent].state);
  if (data.parent == kStackBottom || (counted.loop != 0 && !adaptive_mask(data.state, counted.loop).is_countable)) {
    counted = {};
  }
  const AdaptiveTokenMask& tokens = adaptive_mask(data.state, counted.loop);
  is_large = is_large || tokens.accepted_mask != nullptr || tokens.context_dependent.size() > kMinRangesToCacheMask;
  if (data.depth + tokens.extra_depth >= kMaxDepth) {
    is_large = true;
    unsure_.push_back({0, static_cast<uint32_t>(vocabulary_.node_count())});
    return;
  }
  unsure_.insert(unsure_.end(), tokens.context_dependent.begin(), tokens.context_dependent.end());
  if (tokens.max_runs <= 1 || tokens.max_runs - 1 <= counted.remaining) {
    for (const TokenId token : tokens.accepted_ids) mask.add(token);
    if (tokens.accepted_mask != nullptr) mask.add(*tokens.accepted_mask);
    return;
  }
  TokenMask certain = tokens.accepted_mask != nullptr ? *tokens.accepted_mask : TokenMask(vocabulary_.size());
  for (const TokenId token : tokens.accepted_ids) certain.add(token);
  remove_longer_tokens(tokens.runs, counted.remaining + 1, certain);
  mask.add(certain);
}

// Runs never decrease along a text, so that a node with too many stands for its subtree.
void LazyDfa::remove_longer_tokens(const std::vector<uint8_t>& runs, uint32_t max_runs, TokenMask& mask) {
  const uint32_t limit = std::min<uint32_t>(max_runs, AdaptiveTokenMask::kMaxRuns - 1);
  for (uint32_t at = 0; at < runs.size();) {
    if (runs[at] <= limit) {
      ++at;
      continue;
    }
    const uint32_t end = vocabulary_.node(at).end;
    for (const TokenId token : vocabulary_.tokens_between(at, end)) mask.remove(token);
    unsure_.push_back({at, end});
    at = end;
  }
}

void LazyDfa::add_followed_tokens(DfaState dfa_state, TokenMask& mask) {
  std::ranges::sort(unsure_, {}, [](const AdaptiveTokenMask::NodeRange& range) {
    return std::pair(range.begin, UINT32_MAX - range.end);
  });
  path_[0] = dfa_state;
  std::string_view path_text;  // of the states in path_
  uint32_t followed = 0;       // nodes before this one need no visit
  for (const AdaptiveTokenMask::NodeRange& range : unsure_) {
    if (range.end <= followed) continue;
    const std::string_view text = vocabulary_.first_text(range.begin);
    const size_t parent_length = vocabulary_.node(range.begin).length - 1;
    const std::string_view parent = text.substr(0, parent_length);
    const auto shared = static_cast<size_t>(std::ranges::mismatch(path_text, parent).in1 - path_text.begin());
    for (size_t i = shared; i < parent_length; ++i) {
      path_[i + 1] = path_[i] == kDeadState ? kDeadState : transition(path_[i], static_cast<uint8_t>(parent[i]));
    }
    if (is_exhausted_) return;
    path_text = parent;
    uint32_t at = std::max(range.begin, followed);
    followed = range.end;
    if (path_[parent_length] == kDeadState) continue;
    while (at < range.end) {
      const Vocabulary::Node& node = vocabulary_.node(at);
      const DfaState next = transition(path_[node.length - 1], node.byte);
      if (next == kDeadState) {
        at = node.end;
        continue;
      }
      path_[node.length] = next;
      for (const TokenId token : vocabulary_.tokens_of(at)) mask.add(token);
      ++at;
    }
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
  unsure_.clear();
  for (const Frame frame : frames) add_certain_tokens(frame, mask, is_large);
  add_followed_tokens(dfa_state, mask);
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
