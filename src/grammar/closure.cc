#include "grammar/closure.h"

#include <algorithm>

namespace millrace::grammar {

void Closure::clear() {
  open_.clear();
  visited_.clear();
  runs_.clear();
  run_index_.clear();
  readers_.clear();
  denied_.clear();
  found_text_end_ = false;
  max_depth_ = 0;
}

bool Closure::run(WorkBudget& budget) {
  do {
    while (!open_.empty()) {
      if (budget.is_exhausted()) return false;
      const Item item = open_.back();
      open_.pop_back();
      budget.spend(1);
      if (visited_.try_emplace(uint64_t{item.state} << 32 | item.stack, 0).second) visit(item, budget);
    }
  } while (!denied_.empty() && retry_denied_calls());
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
    budget.spend(run.returns.size());
    return;
  }
  for (const FrameId back : stacks_.returns_of(stack)) {
    if (back == CallStacks::kTextEnd) {
      found_text_end_ = true;
    } else {
      open_.push_back({stacks_.frame(back).state, stacks_.frame(back).stack});
    }
  }
  budget.spend(stacks_.returns_of(stack).size());
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

// A run's depth falls when a less deep frame calls its rule later. Depths only fall, so the order does not matter.
bool Closure::retry_denied_calls() {
  for (bool has_changed = true; has_changed;) {
    has_changed = false;
    for (Run& run : runs_) {
      for (const Item& back : run.returns) {
        const uint32_t depth = depth_from(back);
        has_changed = has_changed || depth < run.depth;
        run.depth = std::min(run.depth, depth);
      }
    }
  }
  const std::vector<DeniedCall> denied = std::exchange(denied_, {});
  for (const DeniedCall& one : denied) call(one.from, one.call);
  return denied_.size() < denied.size();
}

// A rule that comes back only to end there returns to where its caller does, so that repetition by recursion is flat.
StackId Closure::resolve_one(const Run& run) {
  std::vector<FrameId> returns;
  for (const Item& back : run.returns) {
    const StackId stack = is_run(back.stack) ? run_of(back.stack).resolved : back.stack;
    if (automaton_.is_end(back.state)) {
      const auto further = stacks_.returns_of(stack);
      returns.insert(returns.end(), further.begin(), further.end());
    } else {
      returns.push_back(stacks_.frame_of({back.state, stack}));
    }
  }
  std::ranges::sort(returns);
  returns.erase(std::ranges::unique(returns).begin(), returns.end());
  return stacks_.stack_of(returns);
}

// Runs refer to one another without a cycle, since no rule is left-recursive.
StackId Closure::resolve(uint32_t stack) {
  if (!is_run(stack)) return stack;
  std::vector<uint32_t> pending{stack};
  while (!pending.empty()) {
    Run& run = run_of(pending.back());
    const size_t before = pending.size();
    for (const Item& back : run.returns) {
      if (!run.is_resolved && is_run(back.stack) && !run_of(back.stack).is_resolved) pending.push_back(back.stack);
    }
    if (pending.size() > before) continue;
    if (!run.is_resolved) run.resolved = resolve_one(run);
    run.is_resolved = true;
    pending.pop_back();
  }
  return run_of(stack).resolved;
}

std::vector<FrameId> Closure::take_readers() {
  std::vector<FrameId> frames;
  frames.reserve(readers_.size());
  for (const Item& reader : readers_) frames.push_back(stacks_.frame_of({reader.state, resolve(reader.stack)}));
  std::ranges::sort(frames);
  frames.erase(std::ranges::unique(frames).begin(), frames.end());
  return frames;
}

}  // namespace millrace::grammar
