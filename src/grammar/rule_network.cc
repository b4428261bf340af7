#include "grammar/rule_network.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace millrace::grammar {
namespace {

constexpr RuleIndex kNoRule = UINT32_MAX;

/// Returns the rules that `rule` may call before it reads a byte.
std::vector<RuleIndex> left_corner_rules(const RuleNetwork& network, const std::vector<bool>& is_nullable,
                                         RuleIndex rule, std::vector<RuleIndex>& seen_from) {
  std::vector<StateId> reached{network.rules[rule].begin};
  std::vector<RuleIndex> runs;
  const auto add = [&](StateId to) {
    if (std::exchange(seen_from[to], rule) != rule) reached.push_back(to);
  };
  for (size_t i = 0; i < reached.size(); ++i) {
    const RuleNetwork::State& at = network.states[reached[i]];
    for (const StateId to : at.epsilons) add(to);
    for (const RuleNetwork::CallEdge& call : at.calls) {
      runs.push_back(call.rule);
      if (is_nullable[network.rules[call.rule].begin]) add(call.to);
    }
  }
  std::ranges::sort(runs);
  runs.erase(std::ranges::unique(runs).begin(), runs.end());
  return runs;
}

}  // namespace

std::vector<bool> states_reaching_end(const RuleNetwork& network, bool reads) {
  std::vector<std::vector<std::pair<StateId, RuleIndex>>> into(network.states.size());
  std::vector<std::vector<std::pair<StateId, StateId>>> runs(network.rules.size());
  for (StateId from = 0; from < network.states.size(); ++from) {
    for (const Automaton::ByteEdge& edge : network.states[from].bytes) {
      if (reads) into[edge.to].emplace_back(from, kNoRule);
    }
    for (const StateId to : network.states[from].epsilons) into[to].emplace_back(from, kNoRule);
    for (const RuleNetwork::CallEdge& call : network.states[from].calls) {
      into[call.to].emplace_back(from, call.rule);
      runs[call.rule].emplace_back(from, call.to);
    }
  }
  std::unordered_map<StateId, RuleIndex> begins;
  for (RuleIndex rule = 0; rule < network.rules.size(); ++rule) begins.emplace(network.rules[rule].begin, rule);
  std::vector<bool> reaching(network.states.size());
  std::vector<StateId> found;
  const auto add = [&](StateId state) {
    if (reaching[state]) return;
    reaching[state] = true;
    found.push_back(state);
  };
  for (const RuleNetwork::Rule& rule : network.rules) add(rule.end);
  while (!found.empty()) {
    const StateId state = found.back();
    found.pop_back();
    for (const auto& [from, rule] : into[state]) {
      if (rule == kNoRule || reaching[network.rules[rule].begin]) add(from);
    }
    const auto begun = begins.find(state);
    if (begun == begins.end()) continue;
    for (const auto& [from, to] : runs[begun->second]) {
      if (reaching[to]) add(from);
    }
  }
  return reaching;
}

Result<void> check_recursion(const RuleNetwork& network, const std::vector<bool>& is_nullable) {
  enum class Mark : uint8_t { kNew, kOpen, kDone };
  std::vector<Mark> marks(network.rules.size(), Mark::kNew);
  struct Visit {
    RuleIndex rule;
    std::vector<RuleIndex> runs;  // before it reads
  };
  std::vector<Visit> open;
  std::vector<RuleIndex> seen_from(network.states.size(), kNoRule);
  const auto enter = [&](RuleIndex rule) {
    marks[rule] = Mark::kOpen;
    open.push_back({rule, left_corner_rules(network, is_nullable, rule, seen_from)});
  };
  for (RuleIndex root = 0; root < network.rules.size(); ++root) {
    if (marks[root] == Mark::kNew) enter(root);
    while (!open.empty()) {
      if (open.back().runs.empty()) {
        marks[open.back().rule] = Mark::kDone;
        open.pop_back();
        continue;
      }
      const RuleIndex next = open.back().runs.back();
      open.back().runs.pop_back();
      if (marks[next] == Mark::kOpen) {
        return make_error(ErrorCode::kInvalidArgument,
                          "{} refers to itself before it has any text (left recursion); write a repetition, as "
                          "in term (\"+\" term)*",
                          network.rules[next].name);
      }
      if (marks[next] == Mark::kNew) enter(next);
    }
  }
  return {};
}

}  // namespace millrace::grammar
