#include "grammar/closure.h"

#include <algorithm>
#include <utility>

namespace millrace::grammar {

void Closure::clear() {
  open_.clear();
  visited_.clear();
  runs_.clear();
  run_index_.clear();
  readers_.clear();
  denied_.clear();
  is_followed_ = false;
  resolved_readers_ = 0;
  reader_ids_.clear();
  resolving_.clear();
  is_last_ready_ = false;
  resolved_returns_ = 0;
  return_ids_.clear();
  found_text_end_ = false;
  max_depth_ = 0;
}

bool Closure::run(WorkBudget& budget) {
  return follow_all(budget) && collect_readers(budget);
}

bool Closure::follow_all(WorkBudget& budget) {
  while (!is_followed_) {
    while (!open_.empty()) {
      if (budget.is_exhausted()) return false;
      const Item item = open_.back();
      open_.pop_back();
      budget.spend(1);
      if (visited_.try_emplace(uint64_t{item.state} << 32 | item.stack, 0).second) visit(item, budget);
    }
    if (!denied_.empty() && !settle_depths(budget)) return false;
    is_followed_ = denied_.empty() || !retry_denied_calls();
  }
  return true;
}

void Closure::visit(Item item, WorkBudget& budget) {
  max_depth_ = std::max(max_depth_, depth_of(item.stack) + 1);
  if (automaton_.is_end(item.state)) {
    end_rule(item.stack, budget);
    return;
  }
  if (!automaton_.byte_edges_of(item.state).empty()) readers_.push_back(item);
  for (const StateId to : automaton_.epsilons_of(item.state)) open_.push_back({to, item.stack});
  for (const Automaton::Call& next : automaton_.calls_of(item.state)) call(item, next);
  budget.spend(automaton_.epsilons_of(item.state).size() + automaton_.calls_of(item.state).size());
}

void Closure::end_rule(uint32_t stack, WorkBudget& budget) {
  if (is_run(stack)) {
    Run& run = run_of(stack);
    run.may_be_empty = true;
    open_.insert(open_.end(), run.returns.begin(), run.returns.end());
    budget.spend(1 + run.returns.size() / 8);
    return;
  }
  for (const FrameId back : stacks_.returns_of(stack)) {
    if (back == CallStacks::kTextEnd) {
      found_text_end_ = true;
    } else {
      open_.push_back({stacks_.frame(back).state, stacks_.frame(back).stack});
    }
  }
  budget.spend(1 + stacks_.returns_of(stack).size() / 8);
}

void Closure::call(const Item& from, const Automaton::Call& call) {
  if (depth_of(from.stack) + 1 >= kMaxDepth) {
    denied_.push_back({from, call});
    return;
  }
  const auto [index, is_new] = run_index_.try_emplace(call.begin, static_cast<uint32_t>(runs_.size()));
  if (is_new) {
    runs_.emplace_back();
    open_.push_back({call.begin, kRun | index});
  }
  const Item back{call.to, from.stack};
  Run& run = runs_[index];
  run.returns.push_back(back);
  run.depth = std::min(run.depth, depth_from(back));
  if (run.may_be_empty) open_.push_back(back);
}

// A run's depth falls when a less deep frame calls its rule later. Depths only fall, so the order does not matter, and
// a later call may begin anew.
bool Closure::settle_depths(WorkBudget& budget) {
  for (bool has_changed = true; has_changed;) {
    if (budget.is_exhausted()) return false;
    has_changed = false;
    for (Run& run : runs_) {
      for (const Item& back : run.returns) {
        const uint32_t depth = depth_from(back);
        has_changed = has_changed || depth < run.depth;
        run.depth = std::min(run.depth, depth);
      }
      budget.spend(1 + run.returns.size() / 4);
    }
  }
  return true;
}

bool Closure::retry_denied_calls() {
  const std::vector<DeniedCall> denied = std::exchange(denied_, {});
  for (const DeniedCall& one : denied) call(one.from, one.call);
  return denied_.size() < denied.size();
}

bool Closure::collect_readers(WorkBudget& budget) {
  for (; resolved_readers_ < readers_.size(); ++resolved_readers_) {
    if (budget.is_exhausted()) return false;
    const Item& reader = readers_[resolved_readers_];
    if (!resolve(reader.stack, budget)) return false;
    reader_ids_.add(stacks_.frame_of({reader.state, resolved(reader.stack)}));
    budget.spend(1);
  }
  return reader_ids_.run(budget);
}

// Runs refer to one another without a cycle, since no rule is left-recursive.
bool Closure::resolve(uint32_t stack, WorkBudget& budget) {
  if (resolving_.empty() && is_run(stack)) resolving_.push_back(stack);
  while (!resolving_.empty()) {
    if (budget.is_exhausted()) return false;
    if (!run_of(resolving_.back()).is_resolved) {
      if (!is_last_ready_) is_last_ready_ = !add_unresolved(budget);
      if (!is_last_ready_) continue;
      if (!resolve_last(budget)) return false;
    }
    resolving_.pop_back();
    is_last_ready_ = false;
  }
  return true;
}

bool Closure::add_unresolved(WorkBudget& budget) {
  const size_t before = resolving_.size();
  const Run& run = run_of(resolving_.back());
  for (const Item& back : run.returns) {
    if (is_run(back.stack) && !run_of(back.stack).is_resolved) resolving_.push_back(back.stack);
  }
  budget.spend(1 + run.returns.size() / 16);
  return resolving_.size() > before;
}

// A rule that comes back only to end there returns to where its caller does, so that repetition by recursion is flat.
bool Closure::resolve_last(WorkBudget& budget) {
  Run& run = run_of(resolving_.back());
  for (; resolved_returns_ < run.returns.size(); ++resolved_returns_) {
    if (budget.is_exhausted()) return false;
    const Item& back = run.returns[resolved_returns_];
    const StackId stack = resolved(back.stack);
    if (automaton_.is_end(back.state)) {
      return_ids_.add(stacks_.returns_of(stack));
      budget.spend(1 + stacks_.returns_of(stack).size() / 16);
    } else {
      return_ids_.add(stacks_.frame_of({back.state, stack}));
      budget.spend(2);
    }
  }
  if (!return_ids_.run(budget)) return false;
  const std::vector<FrameId> returns = return_ids_.take();
  run.resolved = stacks_.stack_of(returns);
  budget.spend(returns.size() / 8);
  run.is_resolved = true;
  resolved_returns_ = 0;
  return true;
}

}  // namespace millrace::grammar
