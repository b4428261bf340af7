#include "grammar/until_tag.h"

#include <utility>

#include "grammar/tag_automaton.h"

namespace millrace::grammar {

ExpressionPtr until_tag(std::span<const std::string_view> tags, const ExpressionPtr& then, bool may_end) {
  return until_tag(tags, std::span(&then, 1), may_end);
}

ExpressionPtr until_tag(std::span<const std::string_view> tags, std::span<const ExpressionPtr> then, bool may_end) {
  const TagAutomaton automaton(tags);
  const ExpressionPtr nothing = literal("");
  NetworkBuilder network;
  std::vector<uint32_t> nodes = {NetworkBuilder::kBegin};
  while (nodes.size() < automaton.state_count() + then.size()) nodes.push_back(network.add_node());
  for (uint32_t state = 0; state < automaton.state_count(); ++state) {
    for (const auto& [to, chars] : automaton.steps(CharSet(0, CharSet::kMaxCodePoint), state)) {
      if (to < nodes.size()) network.add_edge(nodes[state], nodes[to], one_of(chars));
    }
    if (may_end) network.add_edge(nodes[state], NetworkBuilder::kEnd, nothing);
  }
  for (uint32_t tag = 0; tag < then.size(); ++tag) {
    network.add_edge(nodes[automaton.end_of(tag)], NetworkBuilder::kEnd, then[tag]);
  }
  return std::move(network).build();
}

}  // namespace millrace::grammar
