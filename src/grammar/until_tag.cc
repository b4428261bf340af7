#include "grammar/until_tag.h"

#include <utility>

#include "grammar/tag_automaton.h"

namespace millrace::grammar {

ExpressionPtr until_tag(std::span<const std::string_view> tags, const ExpressionPtr& then, bool may_end) {
  const TagAutomaton automaton(tags);
  const ExpressionPtr nothing = literal("");
  NetworkBuilder network;
  std::vector<uint32_t> nodes = {NetworkBuilder::kBegin};
  while (nodes.size() <= automaton.state_count()) nodes.push_back(network.add_node());
  const uint32_t wanted = automaton.end_of(0);
  for (uint32_t state = 0; state < automaton.state_count(); ++state) {
    for (const auto& [to, chars] : automaton.steps(CharSet(0, CharSet::kMaxCodePoint), state)) {
      if (to <= wanted) network.add_edge(nodes[state], nodes[to], one_of(chars));
    }
    if (may_end) network.add_edge(nodes[state], NetworkBuilder::kEnd, nothing);
  }
  network.add_edge(nodes[wanted], NetworkBuilder::kEnd, then);
  return std::move(network).build();
}

}  // namespace millrace::grammar
