#include "grammar/adaptive_mask_walk.h"

#include <algorithm>
#include <utility>

namespace millrace::grammar {
namespace {

/// A larger part of the vocabulary is kept as a mask instead of a list.
constexpr uint32_t kSparseFraction = 64;

}  // namespace

AdaptiveMaskWalk::AdaptiveMaskWalk(const Vocabulary& vocabulary, AdaptiveMaskKey key)
    : vocabulary_(vocabulary), key_(key), path_(vocabulary.max_token_bytes() + 1) {
  if (key.loop != 0) mask_.runs.resize(vocabulary.node_count());
}

// The stack is the state's rule, then the loop if there is one, then the unknown rest. Each run of the rule ends where
// the loop begins anew. Runs cannot be counted where one may have ended or gone on.
bool AdaptiveMaskWalk::start_over(const std::shared_ptr<LazyDfa>& dfa, WorkBudget& budget) {
  CallStacks& stacks = dfa->stacks();
  StackId stack = CallStacks::kBottom;
  if (key_.loop != 0) {
    const auto run_end = dfa->closure_of({key_.loop, CallStacks::kBottom}, budget);
    if (!run_end) return false;
    run_end_ = *run_end;
    const FrameId loop = stacks.frame_of({key_.loop, CallStacks::kBottom});
    stack = stacks.stack_of({&loop, 1});
  }
  path_[0] = {.dfa_state = dfa->state_of(stacks.frame_of({key_.state, stack})),
              .has_ended = false,
              .whole_runs = 0,
              .begun_runs = 0,
              .max_depth = stacks.depth_of(stack) + 1};
  path_length_ = 0;
  dfa_ = dfa;
  return true;
}

AdaptiveMaskWalk::Step AdaptiveMaskWalk::step_to(const Step& before, LazyDfa::DfaState dfa_state) {
  const bool ends_run = dfa_state == run_end_;
  const bool may_end = dfa_->may_end(dfa_state);
  if (key_.loop != 0 && may_end != ends_run) mask_.is_countable = false;
  return {.dfa_state = dfa_state,
          .has_ended = before.has_ended || may_end,
          .whole_runs = before.whole_runs + (ends_run ? 1 : 0),
          .begun_runs = before.whole_runs + 1,
          .max_depth = std::max(before.max_depth, dfa_->max_depth_of(dfa_state))};
}

// The path to a node is known except over a new DFA, since the walk passes each node after its parent.
bool AdaptiveMaskWalk::follow_parent(WorkBudget& budget) {
  const uint32_t length = vocabulary_.node(at_).length - 1;
  path_length_ = std::min(path_length_, length);
  if (path_length_ == length) return true;
  const std::string_view text = vocabulary_.first_text(at_);
  for (; path_length_ < length; ++path_length_) {
    const Step& before = path_[path_length_];
    const auto next = dfa_->transition(before.dfa_state, static_cast<uint8_t>(text[path_length_]), budget);
    if (!next) return false;
    path_[path_length_ + 1] = step_to(before, *next);
  }
  return true;
}

void AdaptiveMaskWalk::accept(const Step& step) {
  max_depth_ = std::max(max_depth_, step.max_depth);
  if (key_.loop != 0) {
    mask_.max_runs = std::max(mask_.max_runs, step.begun_runs);
    mask_.runs[at_] = static_cast<uint8_t>(std::min<uint32_t>(step.begun_runs, AdaptiveTokenMask::kMaxRuns));
  }
  const std::span<const TokenId> tokens = vocabulary_.tokens_of(at_);
  mask_.accepted_ids.insert(mask_.accepted_ids.end(), tokens.begin(), tokens.end());
}

bool AdaptiveMaskWalk::read_node(WorkBudget& budget) {
  if (!follow_parent(budget)) return false;
  const Vocabulary::Node& node = vocabulary_.node(at_);
  const Step& before = path_[node.length - 1];
  const auto next = dfa_->transition(before.dfa_state, node.byte, budget);
  if (!next) return false;
  budget.spend(1);
  if (*next == LazyDfa::kDeadState) {
    if (before.has_ended) mask_.context_dependent.push_back({at_, node.end});
    at_ = node.end;
    return true;
  }
  path_[node.length] = step_to(before, *next);
  path_length_ = node.length;
  accept(path_[node.length]);
  ++at_;
  if (!dfa_->frames_of(*next).empty()) return true;
  if (at_ < node.end) mask_.context_dependent.push_back({at_, node.end});
  at_ = node.end;
  return true;
}

// A full DFA is left after a node, so that every run makes progress.
bool AdaptiveMaskWalk::run(const std::shared_ptr<LazyDfa>& dfa, WorkBudget& budget) {
  if (dfa_ != dfa && !start_over(dfa, budget)) return false;
  while (at_ < vocabulary_.node_count() && mask_.is_countable) {
    if (budget.is_exhausted() || !read_node(budget) || dfa->is_full()) return false;
  }
  return true;
}

AdaptiveTokenMask AdaptiveMaskWalk::take() {
  is_taken_ = true;
  const uint32_t first_depth = path_[0].max_depth;
  mask_.extra_depth = std::max(max_depth_, first_depth) - first_depth;
  if (mask_.max_runs <= 1) mask_.runs = {};
  if (mask_.accepted_ids.size() > vocabulary_.size() / kSparseFraction) {
    TokenMask accepted(vocabulary_.size());
    for (const TokenId token : mask_.accepted_ids) accepted.add(token);
    mask_.accepted_mask = std::make_shared<const TokenMask>(std::move(accepted));
    mask_.accepted_ids = {};
  }
  mask_.accepted_ids.shrink_to_fit();
  mask_.context_dependent.shrink_to_fit();
  return std::move(mask_);
}

}  // namespace millrace::grammar
