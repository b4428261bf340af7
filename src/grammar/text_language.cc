#include "grammar/text_language.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/result.h"
#include "base/utf8.h"
#include "grammar/text_nfa.h"

namespace millrace::grammar {
namespace {

using States = std::vector<TextLanguage::State>;

/// Rounds of merging equal states. Each merges the states that differ in what follows the last round's.
constexpr int kMaxMergeRounds = 64;
/// Steps to compare one state with the others, and to find the state of a pair.
constexpr uint64_t kMergeSteps = 6;
constexpr uint64_t kPairSteps = 4;

/// Counts the work on all edges of some states once.
void spend_on(const States& states, uint64_t steps_per_state, ReadWork& work) {
  uint64_t edges = 0;
  for (const TextLanguage::State& state : states) edges += state.edges.size();
  work.spend(states.size() * steps_per_state + edges);
}

/// Returns the states that reach an end.
std::vector<bool> useful_states(const States& states) {
  std::vector<std::vector<uint32_t>> into(states.size());
  std::vector<bool> useful(states.size());
  std::vector<uint32_t> open;
  for (uint32_t from = 0; from < states.size(); ++from) {
    for (const TextLanguage::Edge& edge : states[from].edges) into[edge.to].push_back(from);
    if (!states[from].is_end) continue;
    useful[from] = true;
    open.push_back(from);
  }
  while (!open.empty()) {
    const uint32_t state = open.back();
    open.pop_back();
    for (const uint32_t from : into[state]) {
      if (useful[from]) continue;
      useful[from] = true;
      open.push_back(from);
    }
  }
  return useful;
}

/// Appends an edge. Joins it with the last one if they touch and lead to the same state.
void append_edge(std::vector<TextLanguage::Edge>& edges, const TextLanguage::Edge& edge) {
  if (!edges.empty() && edges.back().to == edge.to && edges.back().high + 1 == edge.low) {
    edges.back().high = edge.high;
  } else {
    edges.push_back(edge);
  }
}

/// Renumbers the states by `new_of` in the order in which they are reached from state 0. Drops edges to states that
/// reach no end.
States renumbered(const States& states, const std::vector<uint32_t>& new_of) {
  const std::vector<bool> useful = useful_states(states);
  constexpr uint32_t kNone = UINT32_MAX;
  std::vector<uint32_t> number(states.size(), kNone);
  std::vector<uint32_t> order{new_of[0]};
  number[new_of[0]] = 0;
  States reached;
  for (size_t i = 0; i < order.size(); ++i) {
    const TextLanguage::State& old = states[order[i]];
    TextLanguage::State state{.edges = {}, .is_end = old.is_end};
    for (const TextLanguage::Edge& edge : old.edges) {
      if (!useful[edge.to]) continue;
      const uint32_t to = new_of[edge.to];
      if (number[to] == kNone) {
        number[to] = static_cast<uint32_t>(order.size());
        order.push_back(to);
      }
      append_edge(state.edges, {edge.low, edge.high, number[to]});
    }
    reached.push_back(std::move(state));
  }
  return reached;
}

/// Merges states that end alike and have the same edges, until nothing changes or the rounds end.
States merged_states(States states, ReadWork& work) {
  for (int round = 0; round < kMaxMergeRounds; ++round) {
    spend_on(states, kMergeSteps, work);
    std::vector<uint32_t> new_of(states.size());
    std::unordered_map<std::string, uint32_t> known;
    for (uint32_t i = 0; i < states.size(); ++i) {
      const auto& edges = states[i].edges;
      std::string key(edges.size() * sizeof(TextLanguage::Edge) + 1, states[i].is_end ? '\1' : '\0');
      if (!edges.empty()) std::memcpy(key.data() + 1, edges.data(), key.size() - 1);
      // A state that repeats is equal to another one if both repeat themselves.
      for (size_t e = 0; e < edges.size(); ++e) {
        if (edges[e].to != i) continue;
        const uint32_t self = UINT32_MAX;
        std::memcpy(key.data() + 1 + e * sizeof(TextLanguage::Edge) + offsetof(TextLanguage::Edge, to), &self,
                    sizeof self);
      }
      new_of[i] = known.try_emplace(std::move(key), i).first->second;
    }
    const size_t before = states.size();
    states = renumbered(states, new_of);
    if (states.size() == before) break;
  }
  return states;
}

[[noreturn]] void refuse_size() {
  throw ErrorException(make_error(ErrorCode::kInvalidArgument,
                                  "its texts take an automaton of more than {} states (large counts together with "
                                  "other conditions)",
                                  TextLanguage::kMaxStates));
}

}  // namespace

TextLanguage::TextLanguage(std::vector<State> states)
    : states_(std::make_shared<const std::vector<State>>(std::move(states))) {}

TextLanguage TextLanguage::from_states(std::vector<State> states, ReadWork& work) {
  CHECK(!states.empty());
  std::vector<uint32_t> same(states.size());
  for (uint32_t i = 0; i < same.size(); ++i) same[i] = i;
  return TextLanguage(merged_states(renumbered(states, same), work));
}

TextLanguage TextLanguage::any() {
  return TextLanguage({State{.edges = {{0, CharSet::kMaxCodePoint, 0}}, .is_end = true}});
}

TextLanguage TextLanguage::of_lengths(uint32_t min, std::optional<uint32_t> max) {
  const uint32_t last = max.value_or(min);
  if (last >= kMaxStates) refuse_size();
  std::vector<State> states(last + 1);
  for (uint32_t i = 0; i <= last; ++i) {
    states[i].is_end = i >= min;
    if (i < last) states[i].edges = {{0, CharSet::kMaxCodePoint, i + 1}};
  }
  if (!max) states[last].edges = {{0, CharSet::kMaxCodePoint, last}};
  return TextLanguage(std::move(states));
}

TextLanguage TextLanguage::exactly(const std::vector<std::string_view>& texts, ReadWork& work) {
  std::vector<std::map<char32_t, uint32_t>> tree(1);
  std::vector<bool> is_end(1);
  for (std::string_view text : texts) {
    work.spend(1 + text.size());
    uint32_t at = 0;
    while (!text.empty()) {
      const DecodedUtf8 step = decode_utf8(text);
      text.remove_prefix(step.length);
      const auto [entry, is_new] = tree[at].try_emplace(step.code_point, static_cast<uint32_t>(tree.size()));
      at = entry->second;
      if (!is_new) continue;
      if (tree.size() >= kMaxStates) refuse_size();
      tree.emplace_back();
      is_end.push_back(false);
    }
    is_end[at] = true;
  }
  std::vector<State> states(tree.size());
  for (size_t i = 0; i < tree.size(); ++i) {
    states[i].is_end = is_end[i];
    for (const auto& [c, to] : tree[i]) states[i].edges.push_back({c, c, to});
  }
  return from_states(std::move(states), work);
}

TextLanguage TextLanguage::of_expression(const Expression& expression, ReadWork& work) {
  const auto states = determinized(expression, kMaxStates, work);
  if (!states) refuse_size();
  return from_states(std::move(*states), work);
}

// Each state of the product is a pair. A pair without one half stands where only the other can go on.
template <class IsEnd>
TextLanguage TextLanguage::product(const TextLanguage& other, const IsEnd& is_end, ReadWork& work) const {
  constexpr uint32_t kNone = UINT32_MAX;
  const std::vector<State>& left = *states_;
  const std::vector<State>& right = *other.states_;
  static const State kDead;
  std::unordered_map<uint64_t, uint32_t> numbers{{0, 0}};
  std::vector<std::pair<uint32_t, uint32_t>> pairs{{0, 0}};
  std::vector<State> states;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const auto [a, b] = pairs[i];
    const State& ours = a == kNone ? kDead : left[a];
    const State& theirs = b == kNone ? kDead : right[b];
    State state{.edges = {}, .is_end = is_end(ours.is_end, theirs.is_end)};
    auto x = ours.edges.begin();
    auto y = theirs.edges.begin();
    for (char32_t at = 0; at <= CharSet::kMaxCodePoint;) {
      while (x != ours.edges.end() && x->high < at) ++x;
      while (y != theirs.edges.end() && y->high < at) ++y;
      const bool in_x = x != ours.edges.end() && x->low <= at;
      const bool in_y = y != theirs.edges.end() && y->low <= at;
      char32_t end = CharSet::kMaxCodePoint;
      if (x != ours.edges.end()) end = std::min<char32_t>(end, in_x ? x->high : x->low - 1);
      if (y != theirs.edges.end()) end = std::min<char32_t>(end, in_y ? y->high : y->low - 1);
      const std::pair<uint32_t, uint32_t> to{in_x ? x->to : kNone, in_y ? y->to : kNone};
      // A pair of dead states ends nothing, for neither "and" nor "or".
      const bool may_go_on = is_end(in_x, in_y);
      if (may_go_on) {
        const auto [entry, is_new] =
            numbers.try_emplace(uint64_t{to.first} << 32 | to.second, static_cast<uint32_t>(pairs.size()));
        if (is_new) {
          if (pairs.size() >= kMaxStates) refuse_size();
          pairs.push_back(to);
        }
        append_edge(state.edges, {at, end, entry->second});
      }
      at = end + 1;
    }
    work.spend((ours.edges.size() + theirs.edges.size() + 1) * kPairSteps);
    states.push_back(std::move(state));
  }
  return from_states(std::move(states), work);
}

TextLanguage TextLanguage::and_also(const TextLanguage& other, ReadWork& work) const {
  return product(other, [](bool ours, bool theirs) { return ours && theirs; }, work);
}

TextLanguage TextLanguage::or_else(const TextLanguage& other, ReadWork& work) const {
  return product(other, [](bool ours, bool theirs) { return ours || theirs; }, work);
}

TextLanguage TextLanguage::complement(ReadWork& work) const {
  std::vector<State> states = *states_;
  const auto rest = static_cast<uint32_t>(states.size());
  for (State& state : states) {
    state.is_end = !state.is_end;
    std::vector<Edge> all;
    char32_t next = 0;
    for (const Edge& edge : state.edges) {
      if (edge.low > next) append_edge(all, {next, edge.low - 1, rest});
      append_edge(all, edge);
      next = edge.high + 1;
    }
    if (next <= CharSet::kMaxCodePoint) append_edge(all, {next, CharSet::kMaxCodePoint, rest});
    state.edges = std::move(all);
  }
  states.push_back({.edges = {{0, CharSet::kMaxCodePoint, rest}}, .is_end = true});
  return from_states(std::move(states), work);
}

bool TextLanguage::is_empty() const {
  return std::ranges::none_of(*states_, &State::is_end);
}

bool TextLanguage::accepts(std::string_view utf8) const {
  uint32_t at = 0;
  while (!utf8.empty()) {
    const DecodedUtf8 step = decode_utf8(utf8);
    utf8.remove_prefix(step.length);
    const auto& edges = (*states_)[at].edges;
    const auto found = std::ranges::find_if(
        edges, [&](const Edge& edge) { return edge.low <= step.code_point && step.code_point <= edge.high; });
    if (found == edges.end()) return false;
    at = found->to;
  }
  return (*states_)[at].is_end;
}

std::string TextLanguage::key() const {
  std::string key;
  for (const State& state : *states_) {
    key += state.is_end ? '\1' : '\0';
    const size_t size = key.size();
    key.resize(size + state.edges.size() * sizeof(Edge));
    if (!state.edges.empty()) std::memcpy(key.data() + size, state.edges.data(), state.edges.size() * sizeof(Edge));
  }
  return key;
}

ExpressionPtr TextLanguage::expression(const CharEncoder& write) const {
  NetworkBuilder network;
  std::vector<uint32_t> nodes(states_->size());
  for (size_t i = 0; i < nodes.size(); ++i) nodes[i] = i == 0 ? NetworkBuilder::kBegin : network.add_node();
  const ExpressionPtr nothing = literal("");
  std::map<std::string, ExpressionPtr> written;
  const auto part_of = [&](const CharSet& chars) {
    std::string key(chars.ranges().size() * sizeof(CharSet::Range), '\0');
    std::memcpy(key.data(), chars.ranges().data(), key.size());
    ExpressionPtr& part = written[key];
    if (part == nullptr) part = write(chars);
    return part;
  };
  // Large sets take many states. All edges with such a set to one state share them.
  const CharSet all(0, CharSet::kMaxCodePoint);
  const CharSet beyond_ascii(0x80, CharSet::kMaxCodePoint);
  std::map<std::pair<uint32_t, bool>, uint32_t> shared;
  const auto add_shared = [&](uint32_t from, uint32_t to, bool is_all) {
    const auto [entry, is_new] = shared.try_emplace({to, is_all}, 0);
    if (is_new) {
      entry->second = network.add_node();
      network.add_edge(entry->second, to, part_of(is_all ? all : beyond_ascii));
    }
    network.add_edge(from, entry->second, nothing);
  };
  for (size_t i = 0; i < nodes.size(); ++i) {
    const State& state = (*states_)[i];
    std::map<uint32_t, CharSet> by_target;
    for (const Edge& edge : state.edges) by_target[edge.to].add(edge.low, edge.high);
    for (auto& [to, chars] : by_target) {
      if (chars.complement().empty()) {
        add_shared(nodes[i], nodes[to], true);
        continue;
      }
      if (beyond_ascii.without(chars).empty()) {
        add_shared(nodes[i], nodes[to], false);
        chars = chars.without(beyond_ascii);
      }
      if (!chars.empty()) network.add_edge(nodes[i], nodes[to], part_of(chars));
    }
    if (state.is_end) network.add_edge(nodes[i], NetworkBuilder::kEnd, nothing);
  }
  return std::move(network).build();
}

}  // namespace millrace::grammar
