#include "grammar/mask_walk.h"

#include <algorithm>
#include <utility>

namespace millrace::grammar {
namespace {

/// Words of a mask that are combined in the time of one step.
constexpr size_t kWordsPerStep = 64;

/// Frames that a stack returns to and that are read in the time of one step.
constexpr size_t kReturnsPerStep = 4;

}  // namespace

MaskWalk::MaskWalk(const Automaton& automaton, const Vocabulary& vocabulary)
    : automaton_(automaton),
      vocabulary_(vocabulary),
      mask_(vocabulary.size()),
      path_(vocabulary.max_token_bytes() + 1) {}

bool MaskWalk::find_sources(LazyDfa::DfaState state, WorkBudget& budget) {
  if (has_sources_) return true;
  const CallStacks& stacks = dfa_->stacks();
  const std::span<const FrameId> frames = dfa_->frames_of(state);
  while (sources_.size() < frames.size()) {
    if (budget.is_exhausted()) return false;
    const Frame& frame = stacks.frame(frames[sources_.size()]);
    if (positioned_ != frame.stack && !find_repeat_position(frame.stack, budget)) return false;
    sources_.push_back({.state = frame.state, .counted = position_, .depth = stacks.depth_of(frame.stack) + 1});
    budget.spend(1);
  }
  has_sources_ = true;
  return true;
}

/// Finds the position in a counted repetition from which most runs may follow, of all that the stack returns to.
bool MaskWalk::find_repeat_position(StackId stack, WorkBudget& budget) {
  const CallStacks& stacks = dfa_->stacks();
  const std::span<const FrameId> returns = stacks.returns_of(stack);
  if (read_returns_ == 0) position_ = {};
  positioned_.reset();
  for (; read_returns_ < returns.size(); ++read_returns_) {
    if (budget.is_exhausted()) return false;
    if (read_returns_ % kReturnsPerStep == 0) budget.spend(1);
    if (returns[read_returns_] == CallStacks::kTextEnd) continue;
    const Automaton::RepeatPosition found = automaton_.repeat_position(stacks.frame(returns[read_returns_]).state);
    if (found.loop != 0 && (position_.loop == 0 || found.remaining > position_.remaining)) position_ = found;
  }
  read_returns_ = 0;
  positioned_ = stack;
  return true;
}

bool MaskWalk::run(const std::shared_ptr<LazyDfa>& dfa, LazyDfa::DfaState state, AdaptiveMasks& adaptive,
                   WorkBudget& budget) {
  if (dfa_ != dfa) {
    dfa_ = dfa;
    path_[0] = state;
    path_length_ = 0;
    if (!has_sources_) sources_.clear();
    positioned_.reset();
    read_returns_ = 0;
  }
  const uint64_t used = budget.used();
  const bool is_finished = find_sources(state, budget) && read_sources(adaptive, budget) && follow_tokens(budget);
  steps_ += budget.used() - used;
  return is_finished;
}

bool MaskWalk::read_sources(AdaptiveMasks& adaptive, WorkBudget& budget) {
  for (; read_sources_ < sources_.size(); ++read_sources_) {
    const Source& source = sources_[read_sources_];
    if (!removal_) {
      AdaptivePtr tokens;
      Automaton::RepeatPosition counted = source.counted;
      if (counted.loop != 0) {
        tokens = adaptive_mask({source.state, counted.loop}, adaptive, budget);
        if (tokens == nullptr) return false;
        if (!tokens->is_countable) counted = {};
      }
      if (counted.loop == 0) tokens = adaptive_mask({source.state, 0}, adaptive, budget);
      if (tokens == nullptr) return false;
      read({source.state, counted, source.depth}, std::move(tokens), budget);
    }
    if (removal_ && !finish_removal(budget)) return false;
  }
  return true;
}

MaskWalk::AdaptivePtr MaskWalk::adaptive_mask(AdaptiveMaskKey key, AdaptiveMasks& adaptive, WorkBudget& budget) {
  if (budget.is_exhausted()) return nullptr;
  if (AdaptivePtr known = adaptive.find(key)) return known;
  if (adaptive_walk_ == nullptr || adaptive_walk_->is_taken() || adaptive_walk_->key() != key) {
    adaptive_walk_ = adaptive.walk_of(vocabulary_, key);
  }
  if (!adaptive_walk_->run(dfa_, budget)) return nullptr;
  budget.spend(mask_.words().size() / 8);
  return adaptive.add(key, std::exchange(adaptive_walk_, nullptr)->take());
}

void MaskWalk::read(const Source& source, AdaptivePtr tokens, WorkBudget& budget) {
  budget.spend(1 + tokens->accepted_ids.size() / 4 + mask_.words().size() / kWordsPerStep);
  if (source.depth + tokens->extra_depth >= Closure::kMaxDepth) {
    const NodeRange whole{0, static_cast<uint32_t>(vocabulary_.node_count())};
    add_unsure({.owner = nullptr, .own = {whole}});
    return;
  }
  if (tokens->max_runs <= 1 || tokens->max_runs - 1 <= source.counted.remaining) {
    for (const TokenId token : tokens->accepted_ids) mask_.add(token);
    if (tokens->accepted_mask != nullptr) mask_.add(*tokens->accepted_mask);
  } else {
    TokenMask certain = tokens->accepted_mask != nullptr ? *tokens->accepted_mask : TokenMask(vocabulary_.size());
    for (const TokenId token : tokens->accepted_ids) certain.add(token);
    const uint32_t max_runs = std::min<uint32_t>(source.counted.remaining + 1, AdaptiveTokenMask::kMaxRuns - 1);
    removal_ = {.tokens = tokens, .certain = std::move(certain), .max_runs = max_runs, .at = 0, .removed = {}};
  }
  add_unsure({.owner = std::move(tokens), .own = {}});
}

// Runs never decrease along a text, so that a node with too many stands for its subtree.
bool MaskWalk::finish_removal(WorkBudget& budget) {
  constexpr uint32_t kNodesPerStep = 32;
  Removal& removal = *removal_;
  const std::vector<uint8_t>& runs = removal.tokens->runs;
  while (removal.at < runs.size()) {
    if (budget.is_exhausted()) return false;
    budget.spend(1);
    for (uint32_t i = 0; i < kNodesPerStep && removal.at < runs.size(); ++i) {
      if (runs[removal.at] <= removal.max_runs) {
        ++removal.at;
        continue;
      }
      const uint32_t end = vocabulary_.node(removal.at).end;
      for (const TokenId token : vocabulary_.tokens_between(removal.at, end)) removal.certain.remove(token);
      removal.removed.push_back({removal.at, end});
      removal.at = end;
    }
  }
  mask_.add(removal.certain);
  add_unsure({.owner = nullptr, .own = std::move(removal.removed)});
  removal_.reset();
  return true;
}

void MaskWalk::add_unsure(Unsure unsure) {
  if (unsure.ranges().empty()) return;
  queue_.emplace(~unsure.ranges().front().begin, static_cast<uint32_t>(unsure_.size()));
  unsure_.push_back(std::move(unsure));
}

bool MaskWalk::next_range() {
  while (!queue_.empty()) {
    const uint32_t index = queue_.top().second;
    queue_.pop();
    Unsure& unsure = unsure_[index];
    const NodeRange range = unsure.ranges()[unsure.next++];
    if (unsure.next < unsure.ranges().size()) queue_.emplace(~unsure.ranges()[unsure.next].begin, index);
    if (range.end <= range_end_) continue;
    at_ = std::max(range.begin, range_end_);
    range_end_ = range.end;
    has_jumped_ = true;
    return true;
  }
  return false;
}

// Within a range, each node comes after its parent. A new range shares a part of its text with the last one.
bool MaskWalk::follow_parent(WorkBudget& budget) {
  const uint32_t length = vocabulary_.node(at_).length - 1;
  if (!has_jumped_ && path_length_ >= length) {
    path_length_ = length;
    return true;
  }
  const std::string_view text = vocabulary_.first_text(at_);
  const std::string_view known = vocabulary_.first_text(path_node_);
  const auto shared = static_cast<uint32_t>(std::ranges::mismatch(known, text).in1 - known.begin());
  path_length_ = std::min({path_length_, shared, length});
  path_node_ = at_;
  for (; path_length_ < length; ++path_length_) {
    const auto next = dfa_->transition(path_[path_length_], static_cast<uint8_t>(text[path_length_]), budget);
    if (!next) return false;
    path_[path_length_ + 1] = *next;
  }
  has_jumped_ = false;
  return true;
}

bool MaskWalk::follow_node(WorkBudget& budget) {
  if (!follow_parent(budget)) return false;
  const Vocabulary::Node& node = vocabulary_.node(at_);
  const auto next = dfa_->transition(path_[node.length - 1], node.byte, budget);
  if (!next) return false;
  budget.spend(1);
  if (*next == LazyDfa::kDeadState) {
    at_ = node.end;
    return true;
  }
  path_[node.length] = *next;
  path_length_ = node.length;
  path_node_ = at_;
  for (const TokenId token : vocabulary_.tokens_of(at_)) mask_.add(token);
  ++at_;
  return true;
}

// A full DFA is left after a node, so that every run makes progress.
bool MaskWalk::follow_tokens(WorkBudget& budget) {
  for (;;) {
    while (at_ < range_end_) {
      if (budget.is_exhausted() || !follow_node(budget) || dfa_->is_full()) return false;
    }
    budget.spend(1);
    if (!next_range()) return true;
  }
}

}  // namespace millrace::grammar
