#include "grammar/without_tags.h"

#include <map>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/result.h"
#include "grammar/tag_automaton.h"

namespace millrace::grammar {
namespace {

/// A set of states of the tags' automaton, one bit each.
using TagStates = uint64_t;
/// The node of each state at one position of the copied expression.
using Nodes = std::map<uint32_t, uint32_t>;

constexpr uint32_t kMaxCopies = 2000;  // of a repeated part

/// Makes the product of a grammar and the automaton of some tags, without the states at the end of one. Each rule
/// becomes one rule per state before it and state after it. Lives for one call of without_tags().
class TagFilter {
 public:
  TagFilter(const Definition& source, std::span<const std::string_view> tags, Definition& target, size_t max_edges)
      : source_(source), target_(target), tags_(tags), max_edges_(max_edges) {
    CHECK(tags_.state_count() <= 64, "the states of the tags are the bits of a number");
  }

  ExpressionPtr filter() {
    find_ends_of_rules();
    Nodes ends;
    for (uint32_t state = 0; state < tags_.state_count(); ++state) ends[state] = NetworkBuilder::kEnd;
    ExpressionPtr root = network(*source_.root, 0, ends);
    while (!pending_.empty()) {
      const auto [rule, from, to] = pending_.back();
      pending_.pop_back();
      ExpressionPtr copy = network(*source_.rules[rule].expression, from, {{to, NetworkBuilder::kEnd}});
      target_.rules[copies_.at({rule, from, to})].expression = std::move(copy);
    }
    return root;
  }
  [[nodiscard]] size_t edge_count() const { return edge_count_; }

 private:
  using RuleEnd = std::tuple<RuleIndex, uint32_t, uint32_t>;

  /// Returns the characters of a kChar expression by which a state leads to each other one that ends no tag.
  const std::map<uint32_t, CharSet>& steps(const Expression& expression, uint32_t state) {
    const auto [entry, is_new] = steps_.try_emplace({&expression, state});
    std::map<uint32_t, CharSet>& sets = entry->second;
    if (!is_new) return sets;
    sets = tags_.steps(expression.chars, state);
    sets.erase(sets.lower_bound(tags_.state_count()), sets.end());
    return sets;
  }

  template <class Visit>
  static void for_each(TagStates states, const Visit& visit) {
    for (uint32_t state = 0; states != 0; ++state, states >>= 1) {
      if ((states & 1) != 0) visit(state);
    }
  }

  /// Returns the states after a text of the expression that begins in one of `from`, as far as rules are known.
  TagStates ends_of(const Expression& expression, TagStates from) {
    TagStates ends = 0;
    switch (expression.kind) {
      case Expression::Kind::kLiteral:
        for_each(from, [&](uint32_t state) {
          if (const uint32_t to = tags_.after(expression.text, state); !tags_.is_end(to)) ends |= TagStates{1} << to;
        });
        return ends;
      case Expression::Kind::kTagged: return ends;
      case Expression::Kind::kChar:
        for_each(from, [&](uint32_t state) {
          for (const auto& [to, set] : steps(expression, state)) ends |= TagStates{1} << to;
        });
        return ends;
      case Expression::Kind::kSequence:
        for (const ExpressionPtr& part : expression.parts) from = ends_of(*part, from);
        return from;
      case Expression::Kind::kChoice:
        for (const ExpressionPtr& part : expression.parts) ends |= ends_of(*part, from);
        return ends;
      case Expression::Kind::kRepeat: return ends_of_repeat(expression, from);
      case Expression::Kind::kReference:
        for_each(from, [&](uint32_t state) { ends |= rule_ends_[{expression.rule, state}]; });
        return ends;
      case Expression::Kind::kNetwork: return states_of_nodes(expression, from)[NetworkBuilder::kEnd];
      case Expression::Kind::kAssertion: CHECK(false, "an assertion is no part of a grammar");
    }
    return ends;
  }

  TagStates ends_of_repeat(const Expression& repeat, TagStates from) {
    const Expression& part = *repeat.parts.front();
    for (uint32_t i = 0; i < repeat.min; ++i) {
      const TagStates ends = ends_of(part, from);
      if (ends == std::exchange(from, ends)) break;
    }
    TagStates all = from;
    for (uint32_t i = repeat.min; !repeat.max || i < *repeat.max; ++i) {
      from = ends_of(part, from);
      if ((all | from) == all) break;
      all |= from;
    }
    return all;
  }

  std::vector<TagStates> states_of_nodes(const Expression& network, TagStates from) {
    std::vector<TagStates> states(network.node_count);
    states[NetworkBuilder::kBegin] = from;
    for (bool has_changed = true; has_changed;) {
      has_changed = false;
      for (const Expression::Edge& edge : network.edges) {
        const TagStates ends = states[edge.to] | ends_of(*network.parts[edge.part], states[edge.from]);
        has_changed = has_changed || ends != states[edge.to];
        states[edge.to] = ends;
      }
    }
    return states;
  }

  /// Finds the ends of all rules. Asking for a rule's ends enters it, and entries grow until they agree.
  void find_ends_of_rules() {
    for (bool has_changed = true; has_changed;) {
      has_changed = false;
      const size_t known = rule_ends_.size();
      // What follows a rule in the root is asked for once the rule has an end.
      (void)ends_of(*source_.root, 1);
      for (auto& [key, ends] : rule_ends_) {
        const TagStates found = ends_of(*source_.rules[key.first].expression, TagStates{1} << key.second);
        has_changed = has_changed || found != ends;
        ends = found;
      }
      has_changed = has_changed || rule_ends_.size() != known;
    }
  }

  ExpressionPtr network(const Expression& expression, uint32_t from, Nodes to) {
    NetworkBuilder network;
    add(network, expression, {{from, NetworkBuilder::kBegin}}, to);
    return std::move(network).build();
  }

  uint32_t node(NetworkBuilder& network, Nodes& nodes, uint32_t state) const {
    const auto [entry, is_new] = nodes.try_emplace(state, 0);
    if (is_new) entry->second = network.add_node();
    return entry->second;
  }

  void add_edge(NetworkBuilder& network, uint32_t from, uint32_t to, const ExpressionPtr& part) {
    if (++edge_count_ > max_edges_) {
      throw ErrorException(
          make_error(ErrorCode::kInvalidArgument, "it has too many ways to avoid the tag that ends it"));
    }
    network.add_edge(from, to, part);
  }

  void join(NetworkBuilder& network, const Nodes& from, Nodes& to) {
    for (const auto& [state, begin] : from) add_edge(network, begin, node(network, to, state), empty_);
  }

  void add(NetworkBuilder& network, const Expression& expression, const Nodes& from, Nodes& to) {
    switch (expression.kind) {
      case Expression::Kind::kLiteral:
        for (const auto& [state, begin] : from) {
          const uint32_t end = tags_.after(expression.text, state);
          if (!tags_.is_end(end)) add_edge(network, begin, node(network, to, end), literal(expression.text));
        }
        return;
      case Expression::Kind::kTagged: return;
      case Expression::Kind::kChar:
        for (const auto& [state, begin] : from) {
          for (const auto& [end, set] : steps(expression, state)) {
            add_edge(network, begin, node(network, to, end), one_of(set));
          }
        }
        return;
      case Expression::Kind::kSequence: return add_sequence(network, expression, from, to);
      case Expression::Kind::kChoice:
        for (const ExpressionPtr& part : expression.parts) add(network, *part, from, to);
        return;
      case Expression::Kind::kRepeat: return add_repeat(network, expression, from, to);
      case Expression::Kind::kReference:
        for (const auto& [state, begin] : from) {
          for_each(rule_ends_[{expression.rule, state}], [&](uint32_t end) {
            add_edge(network, begin, node(network, to, end), copy_of({expression.rule, state, end}));
          });
        }
        return;
      case Expression::Kind::kNetwork: return add_network(network, expression, from, to);
      case Expression::Kind::kAssertion: CHECK(false, "an assertion is no part of a grammar");
    }
  }

  void add_sequence(NetworkBuilder& network, const Expression& sequence, Nodes from, Nodes& to) {
    for (const ExpressionPtr& part : sequence.parts) {
      Nodes ends;
      add(network, *part, from, ends);
      from = std::move(ends);
    }
    join(network, from, to);
  }

  void add_repeat(NetworkBuilder& network, const Expression& expression, const Nodes& from, Nodes& to) {
    const ExpressionPtr& part = expression.parts.front();
    Nodes current;
    for (const auto& [state, begin] : from) {
      // A part that leaves the state as it is needs no copies.
      if ((ends_of(*part, TagStates{1} << state) & ~(TagStates{1} << state)) == 0) {
        ExpressionPtr copy = this->network(*part, state, {{state, NetworkBuilder::kEnd}});
        add_edge(network, begin, node(network, to, state), repeat(std::move(copy), expression.min, expression.max));
      } else {
        current[state] = begin;
      }
    }
    if (current.empty()) return;
    if (expression.max.value_or(expression.min) > kMaxCopies) {
      throw ErrorException(make_error(ErrorCode::kInvalidArgument,
                                      "it repeats a part up to {} times that may hold some of the tag that ends it, "
                                      "wanted at most {} times, or no bound",
                                      expression.max.value_or(expression.min), kMaxCopies));
    }
    for (uint32_t i = 0; i < expression.min; ++i) current = added(network, *part, current);
    if (!expression.max) {
      // Nodes that the part leads to and from.
      Nodes loop;
      TagStates states = 0;
      for (const auto& [state, begin] : current) states |= TagStates{1} << state;
      for_each(ends_of_repeat(*repeat(part, 0), states), [&](uint32_t state) { (void)node(network, loop, state); });
      join(network, current, loop);
      const Nodes begins = loop;
      add(network, *part, begins, loop);
      return join(network, loop, to);
    }
    for (uint32_t i = expression.min; i < *expression.max; ++i) {
      join(network, current, to);
      current = added(network, *part, current);
    }
    join(network, current, to);
  }

  Nodes added(NetworkBuilder& network, const Expression& part, const Nodes& from) {
    Nodes to;
    add(network, part, from, to);
    return to;
  }

  void add_network(NetworkBuilder& network, const Expression& expression, const Nodes& from, Nodes& to) {
    TagStates states = 0;
    for (const auto& [state, begin] : from) states |= TagStates{1} << state;
    std::vector<Nodes> nodes(expression.node_count);
    const std::vector<TagStates> reached = states_of_nodes(expression, states);
    for (size_t i = 0; i < nodes.size(); ++i) {
      for_each(reached[i], [&](uint32_t state) { (void)node(network, nodes[i], state); });
    }
    join(network, from, nodes[NetworkBuilder::kBegin]);
    for (const Expression::Edge& edge : expression.edges) {
      const Nodes begins = nodes[edge.from];
      add(network, *expression.parts[edge.part], begins, nodes[edge.to]);
    }
    join(network, nodes[NetworkBuilder::kEnd], to);
  }

  ExpressionPtr copy_of(const RuleEnd& key) {
    const auto [entry, is_new] = copies_.try_emplace(key, 0);
    if (is_new) {
      entry->second = target_.add(source_.rules[std::get<0>(key)].name);
      pending_.push_back(key);
    }
    return reference(entry->second);
  }

  const Definition& source_;
  Definition& target_;
  const TagAutomaton tags_;
  std::map<std::pair<RuleIndex, uint32_t>, TagStates> rule_ends_;  // by rule and the state before it
  std::map<std::pair<const Expression*, uint32_t>, std::map<uint32_t, CharSet>> steps_;  // by expression and state
  std::map<RuleEnd, RuleIndex> copies_;
  std::vector<RuleEnd> pending_;  // copies whose rules have no expression yet
  const ExpressionPtr empty_ = literal("");
  const size_t max_edges_;
  size_t edge_count_ = 0;
};

}  // namespace

Result<ExpressionPtr> without_tags(const Definition& source, std::span<const std::string_view> tags, Definition& target,
                                   size_t max_edges, size_t* edge_count) {
  const size_t rule_count = target.rules.size();
  try {
    TagFilter filter(source, tags, target, max_edges);
    ExpressionPtr root = filter.filter();
    if (edge_count != nullptr) *edge_count += filter.edge_count();
    return root;
  } catch (const ErrorException& failure) {
    target.rules.resize(rule_count);
    return failure.error();
  }
}

}  // namespace millrace::grammar
